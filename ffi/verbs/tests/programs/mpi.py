"""Every rank sends every other rank its own bytes, of several lengths, through libmpi of Open MPI."""
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


mpi.MPI_Init(None, None)
rank, ranks = number(mpi.MPI_Comm_rank), number(mpi.MPI_Comm_size)
wrong = 0
for length in [1, 64, 5000, 70000, 300000]:
    out = b"".join(pattern(rank, to, length) for to in range(ranks))
    into = ctypes.create_string_buffer(length * ranks)
    mpi.MPI_Alltoall(out, length, octet, into, length, octet, world)
    wrong += into.raw != b"".join(pattern(sender, rank, length) for sender in range(ranks))
print(f"rank {rank} of {ranks}: {wrong} wrong", flush=True)
mpi.MPI_Finalize()
sys.exit(wrong != 0)
