"""libkiln.so from Python with ctypes, on a simulated GPU: the call of README.md from two threads.

usage: ctypes_program.py LIBKILN VERSION STORE [alone | beside_sqlite]

Needs nothing beyond Python's own modules. With beside_sqlite the host has an SQLite of its own, open
and in use before, while and after Kiln's is, and nothing of one may reach the other.
"""

import ctypes
import os
import sys
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

OK, INVALID_ARGUMENT, NOT_FOUND, CLOSED = 0, 1, 2, 6
CHECKSUM = 10500252  # by the formula of ops.md B15.2, computed apart from Kiln
SHAPE = b'{"ratio": 2, "top_k": 512}'
WORKLOAD = b'{"ops": [{"op": "combine_topk_swa", "shape": {"ratio": 2, "top_k": 512}}]}'
TOKENS, TOP_K, REQUESTS, WIDTH = 8, 512, 2, 640


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("device", c_char_p),
        ("store", c_char_p),
        ("pack", c_char_p),
        ("log", c_void_p),
        ("log_user", c_void_p),
        ("log_level", c_int),
        ("store_mode", c_char_p),
        ("compiles", c_char_p),
    ]


class Args(ctypes.Structure):
    """kiln_combine_topk_swa_args"""

    _fields_ = [
        ("struct_bytes", c_uint64),
        ("topk", c_void_p),
        ("topk_stride", c_int64),
        ("query_start_loc", c_void_p),
        ("seq_lens", c_void_p),
        ("gather_lens", c_void_p),
        ("idx", c_void_p),
        ("idx_stride", c_int64),
        ("len", c_void_p),
        ("num_tokens", c_int64),
        ("num_requests", c_int64),
        ("idx_width", c_int64),
        ("rows_per_request", c_int64),
        ("compressed_rows", c_int64),
    ]


class Chunk(ctypes.Structure):
    """8 tokens of 2 requests"""

    _fields_ = [
        ("topk", c_int32 * (TOKENS * TOP_K)),
        ("start", c_int32 * 3),
        ("seq_lens", c_int32 * REQUESTS),
        ("gather_lens", c_int32 * REQUESTS),
        ("idx", c_int32 * (TOKENS * WIDTH)),
        ("len", c_int32 * TOKENS),
    ]


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def load(path):
    kiln = ctypes.CDLL(path)
    for name in ("kiln_version", "kiln_last_error", "kiln_status_name"):
        getattr(kiln, name).restype = c_char_p
    kiln.kiln_open.argtypes = [POINTER(Options), POINTER(c_void_p)]
    kiln.kiln_prepare.argtypes = [c_void_p, c_char_p, c_void_p, c_void_p]
    kiln.kiln_seal.argtypes = [c_void_p]
    kiln.kiln_close.argtypes = [c_void_p]
    kiln.kiln_plan_create.argtypes = [c_void_p, c_char_p, c_char_p, POINTER(c_void_p)]
    kiln.kiln_memory_allocate.argtypes = [c_void_p, c_size_t, POINTER(c_void_p)]
    kiln.kiln_memory_write.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t]
    kiln.kiln_memory_read.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t]
    kiln.kiln_synchronize.argtypes = [c_void_p, c_void_p]
    kiln.kiln_combine_topk_swa.argtypes = [c_void_p, POINTER(Args), c_void_p]
    return kiln


class Kiln:
    def __init__(self, library, store):
        self.library = library
        self.session = c_void_p()
        options = Options(size=ctypes.sizeof(Options), device=b"sim:rtx-3090", store=store)
        self.check(library.kiln_open(byref(options), byref(self.session)))

    def check(self, status):
        if status != OK:
            name = self.library.kiln_status_name(status).decode()
            raise AssertionError(f"{name}: {self.last_error()}")

    def last_error(self):
        return self.library.kiln_last_error().decode()

    def refused(self, status, wanted, sentence):
        expect(status == wanted, f"status {status} instead of {wanted}: {self.last_error()}")
        expect(sentence in self.last_error(), f"{sentence!r} is not in: {self.last_error()}")

    def plan(self):
        plan = c_void_p()
        self.check(
            self.library.kiln_plan_create(self.session, b"combine_topk_swa", SHAPE, byref(plan))
        )
        return plan

    def checksum(self, plan):
        """The sum of README.md, of one call on memory of its own."""
        host = Chunk()
        for i in range(TOKENS * TOP_K):
            host.topk[i] = i % TOP_K
        host.start[:] = [0, 3, 8]
        host.seq_lens[:] = [203, 5]
        host.gather_lens[:] = [130, 5]
        memory = c_void_p()
        self.check(
            self.library.kiln_memory_allocate(self.session, ctypes.sizeof(host), byref(memory))
        )
        self.check(
            self.library.kiln_memory_write(self.session, memory, byref(host), ctypes.sizeof(host))
        )

        def at(field):
            return memory.value + getattr(Chunk, field).offset

        args = Args(
            struct_bytes=ctypes.sizeof(Args),
            topk=at("topk"),
            topk_stride=TOP_K,
            query_start_loc=at("start"),
            seq_lens=at("seq_lens"),
            gather_lens=at("gather_lens"),
            idx=at("idx"),
            idx_stride=WIDTH,
            len=at("len"),
            num_tokens=TOKENS,
            num_requests=REQUESTS,
            idx_width=WIDTH,
            rows_per_request=231,
            compressed_rows=101,
        )
        self.check(self.library.kiln_combine_topk_swa(plan, byref(args), None))
        self.check(self.library.kiln_synchronize(self.session, None))
        self.check(
            self.library.kiln_memory_read(self.session, byref(host), memory, ctypes.sizeof(host))
        )
        return sum((i % WIDTH + 1) * host.idx[i] for i in range(TOKENS * WIDTH))

    def bad_call(self, plan):
        args = Args(struct_bytes=ctypes.sizeof(Args), num_tokens=TOKENS, num_requests=REQUESTS)
        status = self.library.kiln_combine_topk_swa(plan, byref(args), None)
        self.refused(status, INVALID_ARGUMENT, "topk")


def serve(library, store):
    kiln = Kiln(library, store)
    kiln.check(library.kiln_prepare(kiln.session, WORKLOAD, None, None))
    kiln.check(library.kiln_seal(kiln.session))
    plan = kiln.plan()
    expect(kiln.checksum(plan) == CHECKSUM, "the checksum of one call")
    kiln.bad_call(plan)
    mine = kiln.last_error()

    failures = []

    def work(name):
        try:
            kiln.refused(
                library.kiln_plan_create(kiln.session, name, SHAPE, byref(c_void_p())),
                NOT_FOUND,
                name.decode(),
            )
            own = kiln.plan()
            for _ in range(3):
                expect(kiln.checksum(own) == CHECKSUM, "the checksum of a thread")
            # What other threads failed at is not said here.
            expect(name.decode() in kiln.last_error(), "the last error of a thread")
        except BaseException as error:  # a thread's exception would be printed and lost
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in (b"no_op_a", b"no_op_b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    expect(kiln.last_error() == mine, "the last error of the first thread")
    kiln.check(library.kiln_close(kiln.session))
    kiln.refused(library.kiln_seal(kiln.session), CLOSED, "closed")


class HostSqlite:
    """An SQLite of the host's, its symbols open to every library that is loaded later."""

    def __init__(self, path):
        import sqlite3

        self.module = sqlite3
        # The same file that Python's module has loaded; its symbols become global.
        try:
            self.library = ctypes.CDLL("libsqlite3.so.0", mode=ctypes.RTLD_GLOBAL)
            self.library.sqlite3_memory_used.restype = c_int64
        except (OSError, AttributeError):
            self.library = None  # Python has it built in
        self.connection = sqlite3.connect(path)
        self.connection.execute("CREATE TABLE host (number INTEGER)")
        self.version = self.selected("SELECT sqlite_version()")

    def selected(self, sql):
        return self.connection.execute(sql).fetchone()[0]

    def memory(self):
        return self.library.sqlite3_memory_used() if self.library else 0

    def use(self, number):
        with self.connection:
            self.connection.execute("INSERT INTO host VALUES (?)", (number,))
        expect(self.selected("SELECT max(number) FROM host") == number, "the host's own row")
        expect(self.selected("PRAGMA integrity_check") == "ok", "the host's own database")
        expect(self.selected("SELECT sqlite_version()") == self.version, "the host's own SQLite")

    def read_store(self, store):
        """The store is not in use now, so any SQLite that knows its tables may read it."""
        if self.module.sqlite_version_info < (3, 37):
            return
        other = self.module.connect(f"file:{store.decode()}?mode=ro", uri=True)
        binaries = other.execute("SELECT count(*) FROM binaries").fetchone()[0]
        other.close()
        expect(binaries > 0, "the store holds what was compiled")


def main():
    path, version, store, company = sys.argv[1:]
    host = None
    if company == "beside_sqlite":
        host = HostSqlite(os.path.join(os.path.dirname(store), "host.db"))
        host.use(1)
    library = load(path)
    expect(library.kiln_version().decode() == version, "the version")
    store = os.fsencode(store)
    if host is None:
        serve(library, store)
    else:
        used = host.memory()
        serve(library, store)
        expect(host.memory() == used, "Kiln took memory of the host's SQLite")
        host.use(2)
        host.read_store(store)
        serve(library, store)  # once more, after the host has read the store
        host.use(3)
        host.connection.close()
        if host.library:
            host.library.sqlite3_shutdown()
            serve(library, store)
    print(f"kiln {version} checksum {CHECKSUM}")


main()
