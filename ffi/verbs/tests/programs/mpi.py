"""Every rank sends every other rank its own bytes, of several lengths, through libmpi of Open MPI. With the argument
`windows`, every rank also puts bytes into the window of the next rank, and gets them back."""
import ctypes
import sys

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))


world, octet = handle("ompi_mpi_comm_world"), handle("ompi_mpi_byte")


def number(call):
    value = ctypes.c_int()
    call(world, ctypes.byref(value))
    return value.value


def pattern(sender, receiver, length):
    return bytes((at * 7 + at // 251 + sender * 31 + receiver * 17) % 256 for at in range(length))


def windows_are_wrong():
    """Puts bytes into the window of the next rank, and gets them back."""
    wrong = 0
    memory = ctypes.create_string_buffer(100000)
    window, size = ctypes.c_void_p(), ctypes.c_long(len(memory))
    no_info = handle("ompi_mpi_info_null")
    mpi.MPI_Win_create(memory, size, 1, no_info, world, ctypes.byref(window))
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    for length in [1, 5000, 100000]:
        out, back = pattern(rank, following, length), ctypes.create_string_buffer(length)
        mpi.MPI_Win_fence(0, window)
        mpi.MPI_Put(out, length, octet, following, ctypes.c_long(0), length, octet, window)
        mpi.MPI_Win_fence(0, window)
        wrong += memory.raw[:length] != pattern(before, rank, length)
        mpi.MPI_Get(back, length, octet, following, ctypes.c_long(0), length, octet, window)
        mpi.MPI_Win_fence(0, window)
        wrong += back.raw != out
    mpi.MPI_Win_free(ctypes.byref(window))
    return wrong


mpi.MPI_Init(None, None)
rank, ranks = number(mpi.MPI_Comm_rank), number(mpi.MPI_Comm_size)
wrong = 0
for length in [1, 64, 5000, 70000, 300000]:
    out = b"".join(pattern(rank, to, length) for to in range(ranks))
    into = ctypes.create_string_buffer(length * ranks)
    mpi.MPI_Alltoall(out, length, octet, into, length, octet, world)
    wrong += into.raw != b"".join(pattern(sender, rank, length) for sender in range(ranks))
if "windows" in sys.argv:
    wrong += windows_are_wrong()
print(f"rank {rank} of {ranks}: {wrong} wrong", flush=True)
mpi.MPI_Finalize()
sys.exit(wrong != 0)
