"""Files that are created anew, replaced as a whole or not at all, opened and locked; no link is followed on the way.

Others may write to the folder of a checkpoint, or may have packed it: whatever is found there under a predictable name
may be a link to a precious file, a pipe that never ends, or what a writer left that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..caches import bounded
from ..errors import CheckpointInUseError, SerializationError
from .streams import name_of_file, write_all

try:
    import fcntl
except ImportError:  # Windows has no such module, so nothing keeps a second writer out there
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "LOCKING",
    "FileLock",
    "folder_lock",
    "kind_of",
    "make_folder",
    "open_plain",
    "remove_left_over",
    "replace_file",
    "sync_folder",
]

_FLAGS = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
"""No link is followed, and a pipe without a writer is opened at once. Not all systems have all flags."""

_LONGEST = 255
"""The bytes in a file's name that file systems allow."""

# --- creating and replacing -------------------------------------------------------------------------------------------


def replace_file(path: Path, parts: Iterable[Any], before: Callable[[], object] | None = None) -> None:
    """Write a file, so that it has the old bytes or all of the new ones, even if the machine stops in between.

    1. The bytes go to a new temporary file in the same folder, and are flushed to the disk.
    2. The temporary file gets the permissions of the old file, `before` is called, and the temporary file takes the
       name of the old one in one step.
    3. The folder, and with it the new name, is flushed to the disk.

    Args:
        path: the file. Missing folders are created.
        parts: the buffers to write, in order.
        before: called when the new bytes are on the disk and the old file is still in its place.

    Raises:
        CheckpointInUseError: if another writer is writing the file.
        OSError: if the disk is full or fails, or if `path` is a link, a folder or anything else that is not a regular
            file. The old file is unchanged.
    """
    mode = _mode_of(path)
    make_folder(path.parent)
    name = f".{path.name}.tmp"
    if len(os.fsencode(name)) > _LONGEST:
        name = f".{hashlib.sha1(os.fsencode(path.name), usedforsecurity=False).hexdigest()}.tmp"
    temporary = path.with_name(name)
    try:
        # The owner may write to it, even if the old file is read-only and this one is left over.
        rights = 0o666 if mode is None else mode | stat.S_IRUSR | stat.S_IWUSR
        with _created(temporary, f'file "{path}"', rights) as lock:
            write_all(functools.partial(os.write, lock.fd), parts)
            if mode is not None and mode != stat.S_IMODE(os.fstat(lock.fd).st_mode):
                os.chmod(lock.fd if os.chmod in os.supports_fd else temporary, mode)
            os.fsync(lock.fd)
            if not lock.is_at(temporary):  # on a file system without locks, another writer took it for a left-over file
                raise _in_use(f'file "{path}"', "another writer")
            if fcntl is None:
                lock.release()  # Windows cannot rename an open file
            if before is not None:
                before()
            os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:  # the system names the temporary file, or no file
        if error.errno is None or (error.filename is not None and os.fspath(error.filename) != os.fspath(temporary)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextlib.contextmanager
def _created(path: Path, where: str, mode: int) -> Iterator[FileLock]:
    """Create a file anew, and lock it; remove it if the block raises. What a killed writer left is removed first.

    Owner and permissions of the new file are not those of what was there, and no file that a link points to is opened.
    """
    lock = None
    while lock is None:
        try:
            lock = FileLock(path, where, os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            remove_left_over(path, where)
    try:
        yield lock
    except BaseException:
        if lock.is_at(path):
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
    finally:
        lock.release()


def remove_left_over(path: Path, where: str) -> None:
    """Remove a temporary file.

    Args:
        path: the file.
        where: the place to which its writer writes, for the error.

    Raises:
        CheckpointInUseError: if its writer still holds its lock.
    """
    with contextlib.suppress(FileNotFoundError):
        kind = kind_of(os.lstat(path))
        if kind == "a folder":
            raise OSError(errno.EISDIR, f"This cannot be written while {path.name} is a folder", os.fspath(path))
        with contextlib.ExitStack() as stack:
            if fcntl and kind is None:  # nobody writes to a link
                stack.callback(FileLock(path, where, 0).release)
            os.unlink(path)


def _mode_of(path: Path) -> int | None:
    """Return the permissions of a file that is about to be replaced, or `None` if it does not exist.

    Raises:
        OSError: if it is a link, a folder, a device or anything else that is not a regular file.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "This is a folder; give the path of a file in it", os.fspath(path))
    if kind := kind_of(status):
        what = f"This is {kind}, not a regular file, and would be replaced by one"
        raise OSError(errno.EINVAL, what, os.fspath(path))
    return stat.S_IMODE(status.st_mode)


def kind_of(status: os.stat_result) -> str | None:
    """Return what a name stands for, for errors, if it is not a regular file."""
    kinds = {stat.S_IFREG: None, stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(status.st_mode), "a special file")


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading, without a buffer.

    Args:
        path: the file, or a link to it.

    Raises:
        SerializationError: if it is a folder, a pipe or a device. To open one of these may take for ever.
        FileNotFoundError: if there is no such file.
    """
    fd = os.open(path, os.O_RDONLY | (_FLAGS & ~getattr(os, "O_NOFOLLOW", 0)))
    if kind := kind_of(os.fstat(fd)):
        os.close(fd)
        what = f"this is {kind}, not a regular file."
        fix = "Pass the path of one file."
        raise SerializationError(name_of_file(path), what, fix, given=kind, expected="a regular file")
    return os.fdopen(fd, "rb", buffering=0)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they are missing; their names are on the disk when this returns."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- locks ------------------------------------------------------------------------------------------------------------

LOCKING = threading.RLock()
"""Held while a lock is taken. A fork waits for it: a child must know all locks that it has to release."""

_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """A file that one object holds at a time. The system releases the lock when the process ends, however it ends.

    Forked processes do not hold the lock: they may live longer, and would keep other writers out.

    Args:
        path: the file. A link is not followed.
        where: the locked place, for the error.
        flags: flags of `os.open`. By default, a missing file is created.
        mode: the permissions of a new file, before the umask is applied.
        lock: if false, the file is only opened.

    Attributes:
        is_locked: whether the file system has locks; if not, nothing keeps other writers out.

    Raises:
        CheckpointInUseError: if another process, or another object of this process, holds the lock.
        OSError: if the file cannot be opened.
    """

    def __init__(
        self, path: Path, where: str, flags: int = os.O_CREAT, mode: int = 0o666, *, lock: bool = True
    ) -> None:
        self.fd, self.is_locked = -1, False
        with LOCKING:
            while not self.is_at(path):  # between `open` and `flock`, another writer finished and renamed the file
                self.release()
                self.fd = os.open(path, os.O_RDWR | _FLAGS | flags, mode)
                try:
                    if lock and fcntl:
                        self._lock(where)
                except BaseException:
                    if flags & os.O_EXCL and self.is_at(path):
                        os.unlink(path)  # nothing is left of a file that could not be locked
                    self.release()
                    raise
            _HELD.add(self)

    def is_at(self, path: Path) -> bool:
        """Return whether the locked file still has this name."""
        try:
            return self.fd >= 0 and os.path.samestat(os.fstat(self.fd), os.lstat(path))
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self.is_locked:  # a process that was just forked may not have closed its copy yet
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        self.forget()

    def forget(self, close: Callable[[int], None] = os.close) -> None:
        """Close the file, but leave the lock to other processes that have it open.

        Args:
            close: the function that closes the file. It is a default because modules are empty when the interpreter
                ends.
        """
        fd, self.fd, self.is_locked = self.fd, -1, False
        if fd >= 0:
            close(fd)

    def __del__(self) -> None:
        self.forget()

    def _lock(self, where: str) -> None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_locked = True
        except BlockingIOError:
            raise _in_use(where, self._holder()) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    def _holder(self) -> str:
        """Return who holds the lock of this file. Its text is the number of the process, in a folder's lock."""
        status = os.fstat(self.fd)
        for one in list(_HELD):
            with contextlib.suppress(OSError):  # another thread may release it at the same time
                if os.path.samestat(os.fstat(one.fd), status):
                    return "another object or thread of this process"
        holder = os.read(self.fd, 20).strip()
        known = holder.isdigit() and int(holder) != os.getpid()
        return f"process {int(holder)}" if known else "another process"


_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
"""What `flock` answers on file systems without locks, such as Lustre, and some of FUSE and NFS."""


def _in_use(where: str, holder: str) -> CheckpointInUseError:
    what = f"{holder} is writing there, and only one writer is allowed."
    return CheckpointInUseError(where, what, "Close the other one first, or write to another place.")


def folder_lock(path: Path, where: str, lock: bool) -> FileLock:
    """Lock a folder by a file in it, which holds the number of the process and nothing else.

    Args:
        path: the file, which is created if it is missing.
        where: the folder, for the error.
        lock: if false, the file is written, but nothing keeps other writers out.

    Raises:
        CheckpointInUseError: if there is another writer.
        OSError: if the file is a link, has a second name, or holds something else: it may be a precious file.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_lock(path, os.lstat(path))
    file = FileLock(path, where, lock=lock)
    try:
        _check_lock(path, os.fstat(file.fd))
        if (text := os.read(file.fd, 32).strip()) and not text.isdigit():
            raise OSError(errno.EEXIST, "This is not the lock of a folder: it holds something else", os.fspath(path))
        with contextlib.suppress(OSError):  # only another writer's error needs the number; the disk may be full
            os.ftruncate(file.fd, 0)
            os.lseek(file.fd, 0, os.SEEK_SET)
            os.write(file.fd, str(os.getpid()).encode())
        if lock and fcntl and not file.is_locked:
            _warn_of_no_locks(path.parent)
    except BaseException:
        file.release()
        raise
    return file


def _check_lock(path: Path, status: os.stat_result) -> None:
    """Check that a lock is a regular file with one name, so that to write into it changes no other file."""
    if kind := kind_of(status) or ("a hard link" if status.st_nlink > 1 else None):
        what = f"This is {kind}, and not the lock of a folder; remove it if no writer uses the folder"
        raise OSError(errno.ELOOP, what, os.fspath(path))


@bounded(64)  # once for each folder
def _warn_of_no_locks(folder: Path) -> None:
    what = f'the file system of "{folder}" has no locks, so nothing keeps a second writer out.'
    fix = "Make sure that one process writes, and say so with `Checkpoints(folder, lock=False)`."
    warnings.warn(f"{what} {fix}", RuntimeWarning, stacklevel=5)


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()
    LOCKING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LOCKING.acquire, after_in_parent=LOCKING.release, after_in_child=_forget_all)
