"""Give `np.matmul` the loops of loops.so: in a browser NumPy has no BLAS."""

import ctypes

import numpy as np

REPLACE_LOOP = 30  # PyUFunc_ReplaceLoopBySignature in NumPy's table of C functions
LOOPS = {"multiply_float32": np.dtype(np.float32), "multiply_float64": np.dtype(np.float64)}


def quicken(path: str) -> None:
    """Replace the loops of float32 and float64 for good."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(np._core._multiarray_umath._UFUNC_API, None)
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[REPLACE_LOOP]
    kinds = (ctypes.py_object, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.c_void_p)
    replace = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(address)
    library = ctypes.CDLL(path)
    for name, dtype in LOOPS.items():
        loop = ctypes.cast(getattr(library, name), ctypes.c_void_p)
        signature = (ctypes.c_int * 3)(*[dtype.num] * 3)
        if replace(np.matmul, loop, signature, None) != 0:
            raise RuntimeError(f"np.matmul has no loop of {dtype}")
