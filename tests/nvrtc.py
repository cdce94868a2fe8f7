"""NVIDIA's run-time compiler, which needs no GPU: that it takes the package's CUDA sources."""

import ctypes
import importlib.metadata
import re

import pytest

from attnbook.compilers import cuda as _cuda


def library() -> ctypes.CDLL:
    """Return the compiler, or skip the test."""
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found = sorted(file for file in files if re.match(r"libnvrtc[-a-z]*\.so", file.name))
        # the library of built-in functions comes first, since NVRTC asks for it by name
        loaded = [ctypes.CDLL(str(file.locate())) for file in found if "alt" not in file.name]
        if loaded:
            return loaded[-1]
    pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")


def compile_all(source: _cuda.Source, templates: tuple[str, ...]) -> list[tuple[int, int]]:
    """Compile a source for the sm_90 of an H200 without a warning, a spill or local memory.

    Returns the registers of a thread and the static shared memory of a block, for each kernel.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    code = source.text().encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, b"k.cu", 0, None, None) == 0
    for name in templates:
        assert nvrtc.nvrtcAddNameExpression(program, name.encode()) == 0
    options = ["--gpu-architecture=sm_90", *_cuda.OPTIONS, "--ptxas-options=-v"]
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    result = nvrtc.nvrtcCompileProgram(program, len(options), given)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.value.decode()
    assert result == 0, text
    assert "warning" not in text, text
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill)", text)) <= {"0"}, text
    lowered = ctypes.c_char_p()
    for name in templates:
        assert nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)) == 0
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    assert size.value > 0
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    used = re.findall(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?", text)
    return [(int(registers), int(shared or 0)) for registers, shared in used]
