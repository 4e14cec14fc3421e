"""A file that is replaced as a whole or not at all, and locks that end with the process which holds them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import CheckpointInUseError

try:
    import fcntl
except ImportError:  # not on Windows, where nothing keeps a second writer out
    fcntl = None  # type: ignore[assignment]

__all__ = ["FileLock", "errors_about", "make_folder", "mode_of", "replace_file", "sync_folder"]


def replace_file(path: Path, parts: Iterable[Any]) -> None:
    """Writes a file, which has the old bytes or all of the new ones, also if the machine stops in between.

    1. The bytes go to a file of another name in the same folder, and from there to the disk.
    2. It gets the permissions and the name of the old file, the name in one step.
    3. The folder goes to the disk, and with it the name.

    Args:
        path: the file; of a link, the file that it leads to. Its folder is made if it is missing.
        parts: buffers, one after the other.

    Raises:
        CheckpointInUseError: if the file is being written already.
        OSError: if there is no room, or anything else is wrong with the disk. The old file is there as before.
    """
    path = Path(os.path.realpath(path))
    mode = mode_of(path)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    with errors_about(path, temporary):
        # The owner may write, also if a file of this name is left over and the old file is read-only.
        lock = FileLock(temporary, f'file "{path}"', 0o666 if mode is None else mode | stat.S_IRUSR | stat.S_IWUSR)
        _replace(path, temporary, lock, parts, mode)
        sync_folder(path.parent)


def _replace(path: Path, temporary: Path, lock: FileLock, parts: Iterable[Any], mode: int | None) -> None:
    try:
        os.ftruncate(lock.fd, 0)  # a writer that was killed may have left some
        for part in parts:
            _write(lock.fd, part)
            del part
        if mode is not None and mode != stat.S_IMODE(os.fstat(lock.fd).st_mode):
            os.chmod(temporary, mode)
        os.fsync(lock.fd)
        if fcntl is None:
            lock.release()  # Windows renames no file that is open
        os.replace(temporary, path)
    except BaseException:
        if lock.is_at(temporary):
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise
    finally:
        lock.release()


def mode_of(path: Path) -> int | None:
    """The permissions of a file that is going to be replaced, or `None` if there is none.

    Raises:
        OSError: if it is a folder, a device or anything else that is not a plain file.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "This is a folder; give the path of a file in it", os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "This is not a plain file, and would be replaced by one", os.fspath(path))
    return stat.S_IMODE(mode)


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, if they are missing; their names are on the disk when it returns."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


@contextlib.contextmanager
def errors_about(path: Path, temporary: Path) -> Iterator[None]:
    """Names a file in the errors of the system, also in those about its temporary file or about none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, os.fspath(temporary)):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def _write(fd: int, data: Any) -> None:
    left = memoryview(data)
    while left.nbytes:
        left = left[os.write(fd, left) :]


def sync_folder(folder: Path) -> None:
    """Makes sure that the names in a folder are on the disk."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FileLock:
    """A file that only one holds open at a time; the system lets go of it when the process ends, however it ends.

    Processes that are forked do not hold it: they may live longer, and would keep others from beginning again.

    Args:
        path: the file, which is made if it is not there.
        where: what it stands for, in the error.
        mode: the permissions of a file that is made, less those that the umask takes away.

    Raises:
        CheckpointInUseError: if another process, or another object of this one, holds it.
    """

    def __init__(self, path: Path, where: str, mode: int = 0o666) -> None:
        while True:
            self.fd = -1
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), mode)
            try:
                self._lock(where)
                if self.is_at(path):
                    break
            except BaseException:
                self.release()
                raise
            self.release()  # between the two, someone who was done gave the file another name
        _HELD.add(self)

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self.fd >= 0

    def is_at(self, path: Path) -> bool:
        """Whether the file has a name, still."""
        try:
            return self.held and os.path.samestat(os.fstat(self.fd), os.stat(path))
        except FileNotFoundError:
            return False

    def release(self, close: Callable[[int], None] = os.close) -> None:
        """Lets go of it; the file stays.

        Args:
            close: what closes a file. It is bound here, since modules are empty when the interpreter ends.
        """
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            close(fd)

    def __del__(self) -> None:
        self.release()

    def _lock(self, where: str) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self.fd, 20).decode("ascii", "replace").strip()
            by = f"process {holder}" if holder.isdigit() else "another writer"
            by = "another object of this process" if holder == str(os.getpid()) else by
            what = f"{by} is writing there, and there can be one writer only."
            raise CheckpointInUseError(where, what, "Close the other one first, or write to another place.") from None


_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
