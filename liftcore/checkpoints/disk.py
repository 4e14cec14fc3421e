"""Files that are replaced as a whole or not at all, and locks that end with the process that holds them."""

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
except ImportError:  # Windows has no such module, so nothing keeps a second writer out there
    fcntl = None  # type: ignore[assignment]

__all__ = ["FileLock", "errors_about", "make_folder", "mode_of", "replace_file", "sync_folder"]


def replace_file(path: Path, parts: Iterable[Any]) -> None:
    """Write a file, so that it has the old bytes or all of the new ones, even if the machine stops in between.

    1. The bytes go to a temporary file in the same folder, and are flushed to the disk.
    2. The temporary file gets the permissions of the old file, and takes its name in one step.
    3. The folder, and with it the new name, is flushed to the disk.

    Args:
        path: the file. If it is a link, the file that it points to is replaced. Missing folders are created.
        parts: the buffers to write, in order.

    Raises:
        CheckpointInUseError: if another writer is writing the file.
        OSError: if the disk is full or fails. The old file is unchanged.
    """
    path = Path(os.path.realpath(path))
    mode = mode_of(path)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    with errors_about(path, temporary):
        # The owner may write to it, even if the old file is read-only and a temporary file is left over.
        lock = FileLock(temporary, f'file "{path}"', 0o666 if mode is None else mode | stat.S_IRUSR | stat.S_IWUSR)
        _replace(path, temporary, lock, parts, mode)
        sync_folder(path.parent)


def _replace(path: Path, temporary: Path, lock: FileLock, parts: Iterable[Any], mode: int | None) -> None:
    try:
        os.ftruncate(lock.fd, 0)  # a writer that was killed may have left some bytes
        for part in parts:
            _write(lock.fd, part)
            del part
        if mode is not None and mode != stat.S_IMODE(os.fstat(lock.fd).st_mode):
            os.chmod(temporary, mode)
        os.fsync(lock.fd)
        if fcntl is None:
            lock.release()  # Windows cannot rename an open file
        os.replace(temporary, path)
    except BaseException:
        if lock.is_at(temporary):
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise
    finally:
        lock.release()


def mode_of(path: Path) -> int | None:
    """Return the permissions of a file that is about to be replaced, or `None` if it does not exist.

    Raises:
        OSError: if it is a folder, a device or anything else that is not a regular file.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "This is a folder; give the path of a file in it", os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "This is not a regular file, and would be replaced by one", os.fspath(path))
    return stat.S_IMODE(mode)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they are missing; their names are on the disk when this returns."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


@contextlib.contextmanager
def errors_about(path: Path, temporary: Path) -> Iterator[None]:
    """Name `path` in errors of the system that name its temporary file or no file."""
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
    """Flush the names in a folder to the disk."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FileLock:
    """A file that one object holds at a time. The system releases the lock when the process ends, however it ends.

    Forked processes do not hold the lock: they may live longer, and would keep other writers out.

    Args:
        path: the file, which is created if it does not exist.
        where: the locked place, for the error.
        mode: the permissions of a new file, before the umask is applied.

    Raises:
        CheckpointInUseError: if another process, or another object of this process, holds the lock.
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
            self.release()  # between `open` and `flock`, another writer finished and renamed the file
        _HELD.add(self)

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self.fd >= 0

    def is_at(self, path: Path) -> bool:
        """Return whether the locked file still has this name."""
        try:
            return self.held and os.path.samestat(os.fstat(self.fd), os.stat(path))
        except FileNotFoundError:
            return False

    def release(self, close: Callable[[int], None] = os.close) -> None:
        """Release the lock; the file stays.

        Args:
            close: the function that closes the file. It is a default because modules are empty when the interpreter
                ends.
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
            what = f"{by} is writing there, and only one writer is allowed."
            raise CheckpointInUseError(where, what, "Close the other one first, or write to another place.") from None


_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
