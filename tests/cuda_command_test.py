"""`coda env` and `coda emit` with drivers and compilers that lack, are old, or fail."""

import json
import os
import subprocess

import pytest

# A driver whose answers come from the environment of the process.
DRIVER = r"""
#include <stdlib.h>
#include <string.h>
static int number(const char* name, int otherwise) {
  return getenv(name) ? atoi(getenv(name)) : otherwise;
}
static int done(void) { return 0; }
static int init(unsigned flags) { return number("FAKE_INIT", 0); }
static int count(int* devices) { *devices = 1; return 0; }
static int device(int* to, int ordinal) { *to = ordinal; return 0; }
static int name(char* to, int bytes, int device) { strcpy(to, "Fake H200"); return 0; }
static int memory(size_t* bytes, int device) { *bytes = 141ull << 30; return 0; }
static int words(int result, const char** to) { *to = "odd"; return 0; }
static int attribute(int* to, int which, int device) {
  *to = which == 75 ? number("FAKE_MAJOR", 9) : which == 76 ? 0
      : which == 13 ? 1980000 : which == 16 ? 132 : 232448;
  return 0;
}
int cuDriverGetVersion(int* to) { *to = number("FAKE_VERSION", 13000); return 0; }
int cuGetProcAddress_v2(const char* symbol, void** to, int version, unsigned long long flags,
                        int* status) {
  const struct { const char* name; void* entry; } known[] = {
      {"cuInit", init}, {"cuDeviceGetCount", count}, {"cuDeviceGet", device},
      {"cuDeviceGetName", name}, {"cuDeviceTotalMem", memory}, {"cuGetErrorName", words},
      {"cuGetErrorString", words}, {"cuDeviceGetAttribute", attribute}};
  if (getenv("FAKE_LACKS") && strcmp(symbol, getenv("FAKE_LACKS")) == 0) return 500;
  *to = done;
  for (int i = 0; i < 8; ++i) if (strcmp(symbol, known[i].name) == 0) *to = known[i].entry;
  return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", folder / "driver.c", "-x", "none",
                    "-o", folder / "libcuda.so.1"], check=True)
    return folder


def run(binary, *arguments, **variables):
    return subprocess.run([binary, *arguments], text=True, capture_output=True, timeout=60,
                          env=os.environ | variables)


def env(binary, **variables):
    return json.loads(run(binary, "env", "--json", **variables).stdout)


def gpu(binary, driver, **variables):
    return env(binary, LD_LIBRARY_PATH=str(driver), **variables)["gpu"]


def test_env_says_what_the_gpu_is(binary, driver):
    facts = gpu(binary, driver)
    assert facts["name"] == "Fake H200" and facts["architecture"] == "sm_90a"
    assert (facts["processors"], facts["memory"]) == (132, 141 << 30)
    assert facts["driver_cuda"] == "13.0"
    text = run(binary, "env", LD_LIBRARY_PATH=str(driver)).stdout
    assert ("gpu: Fake H200, sm_90a, 132 processors at 1980 MHz, 141.0 GiB, driver for CUDA 13.0"
            in text)


@pytest.mark.parametrize("variables, problem", [
    ({"FAKE_VERSION": "12040"}, "too old: it runs CUDA 12.4, but 12.8 or newer is needed"),
    ({"FAKE_MAJOR": "8"}, "compute capability 8.0, but the kernels are made for 9.0"),
    ({"FAKE_INIT": "100"}, "no NVIDIA GPU"),
    ({"FAKE_INIT": "803"}, "differ in version: reboot"),
    ({"FAKE_INIT": "999"}, "cuInit failed: odd"),
    ({"FAKE_LACKS": "cuTensorMapEncodeTiled"}, "lacks cuTensorMapEncodeTiled"),
])
def test_env_says_why_there_is_no_gpu_and_a_run_says_the_same(binary, driver, variables, problem):
    assert problem in gpu(binary, driver, **variables)["problem"]
    command = run(binary, "run", "norm.coda", "random", "--program", "norm_weight", "--device",
                  "cuda", "--size", "M=2", "N=2", LD_LIBRARY_PATH=str(driver), **variables)
    assert command.returncode == 3 and problem in command.stderr, command.stderr


def test_env_says_what_is_cached_and_where(binary, tmp_path):
    assert env(binary, CODA_CACHE="off")["kernel_cache"] == {
        "folder": "", "entries": 0, "bytes": 0}
    assert env(binary, CODA_CACHE="", XDG_CACHE_HOME=str(tmp_path))["kernel_cache"] == {
        "folder": f"{tmp_path}/coda", "entries": 0, "bytes": 0}


def test_env_says_how_to_get_a_compiler(binary):
    problem = env(binary, CODA_NVRTC="/nowhere/libnvrtc.so")["nvrtc"]["problem"]
    assert "/nowhere/libnvrtc.so" in problem and "pip install nvidia-cuda-nvrtc" in problem
    assert "libnvrtc.so" in env(binary, CODA_NVRTC="")["nvrtc"]["path"]


def emit(binary, *arguments, **variables):
    return run(binary, "emit", "norm.coda", "--program", "norm_weight", *arguments, **variables)


def test_emit_prints_the_page_and_what_compilers_make_of_it(binary, tmp_path):
    page = emit(binary)
    assert page.returncode == 0, page.stderr
    assert "__global__" in page.stdout and "program norm_weight" in page.stderr
    assert ".target sm_90a" in emit(binary, "--ptx").stdout
    cubin = tmp_path / "norm.cubin"
    cache = tmp_path / "cache"
    compiled = emit(binary, "--cubin", "-o", str(cubin), CODA_CACHE=str(cache))
    assert compiled.returncode == 0 and "registers" in compiled.stderr, compiled.stderr
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    assert env(binary, CODA_CACHE=str(cache))["kernel_cache"]["entries"] == 1


def test_emit_says_how_to_get_a_disassembler(binary, tmp_path):
    command = emit(binary, "--sass", PATH=str(tmp_path), CUDA_HOME=str(tmp_path),
                   CODA_CACHE=str(tmp_path / "cache"))
    if command.returncode != 0:  # a toolkit of this machine's own would be found
        assert "pip install nvidia-cuda-nvdisasm" in command.stderr


def test_emit_shows_every_kernel_of_a_block(binary):
    shown = run(binary, "emit", "llama.coda", "--block", "mlp")
    assert shown.returncode == 0, shown.stderr
    assert "// ---- kernel 1 of " in shown.stdout
    refused = run(binary, "emit", "llama.coda", "--block", "mlp", "--cubin", "-o", "/dev/null")
    assert refused.returncode == 1 and "a cubin holds one" in refused.stderr
