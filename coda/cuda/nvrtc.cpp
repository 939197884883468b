// coda/cuda/nvrtc.cpp: finds the compiler, runs it, and reads what it says.
#include "coda/cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "coda/core/error.h"
#include "coda/core/flags.h"

namespace coda::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInstall =
    "install NVIDIA's run-time compiler with `pip install nvidia-cuda-nvrtc==13.0.88`, or a CUDA "
    "toolkit 12.8 or newer, or set CODA_NVRTC to the path of libnvrtc.so.13";

// ---- where it may be ----

std::vector<fs::path> sorted_entries(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  }
  // Newest first: 13 before 12.
  std::ranges::sort(found, std::greater());
  return found;
}

// The folders of the wheels in a site-packages folder.
void add_wheels(const fs::path& site, std::vector<fs::path>& folders) {
  folders.push_back(site / "nvidia" / "cu13" / "lib");
  folders.push_back(site / "nvidia" / "cuda_nvrtc" / "lib");
}

void add_python(const fs::path& prefix, std::vector<fs::path>& folders) {
  for (const fs::path& version : sorted_entries(prefix / "lib", "python3")) {
    add_wheels(version / "site-packages", folders);
    add_wheels(version / "dist-packages", folders);
  }
}

// Beside this library and this program: the site-packages folder that holds the Python module, or
// the .venv of the checkout that holds the build.
void add_beside(const fs::path& file, std::vector<fs::path>& folders) {
  fs::path folder = file.parent_path();
  for (int level = 0; level < 4 && folder.has_relative_path(); ++level) {
    add_wheels(folder, folders);
    add_python(folder / ".venv", folders);
    folder = folder.parent_path();
  }
}

fs::path file_of(const void* symbol) {
  Dl_info info = {};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  return fs::absolute(info.dli_fname, error);
}

std::vector<fs::path> search_folders() {
  std::vector<fs::path> folders;
  std::error_code error;
  add_beside(file_of(reinterpret_cast<const void*>(&search_folders)), folders);
  add_beside(fs::read_symlink("/proc/self/exe", error), folders);
  for (const std::string& prefix : flags::python_prefixes()) add_python(prefix, folders);
  if (const std::string home = flags::cuda_home(); !home.empty()) {
    folders.push_back(fs::path(home) / "lib64");
  }
  folders.push_back("/usr/local/cuda/lib64");
  for (const fs::path& toolkit : sorted_entries("/usr/local", "cuda-")) {
    folders.push_back(toolkit / "lib64");
  }
  return folders;
}

// ---- the loaded library ----

using Handle = struct ProgramObject*;

enum class Status : int { success = 0, out_of_memory = 1, invalid_option = 5, compilation = 6 };

struct Library {
  Status (*Version)(int*, int*);
  const char* (*GetErrorString)(Status);
  Status (*CreateProgram)(Handle*, const char*, const char*, int, const char* const*,
                          const char* const*);
  Status (*DestroyProgram)(Handle*);
  Status (*CompileProgram)(Handle, int, const char* const*);
  Status (*GetCUBINSize)(Handle, std::size_t*);
  Status (*GetCUBIN)(Handle, char*);
  Status (*GetPTXSize)(Handle, std::size_t*);
  Status (*GetPTX)(Handle, char*);
  Status (*GetProgramLogSize)(Handle, std::size_t*);
  Status (*GetProgramLog)(Handle, char*);

  std::string path;
  int major = 0, minor = 0;
  std::string problem;  // empty: loaded
};

template <class F>
bool find(void* library, const char* name, F& entry) {
  entry = reinterpret_cast<F>(dlsym(library, name));
  return entry != nullptr;
}

bool find_all(void* library, Library& l) {
  return find(library, "nvrtcVersion", l.Version) &&
         find(library, "nvrtcGetErrorString", l.GetErrorString) &&
         find(library, "nvrtcCreateProgram", l.CreateProgram) &&
         find(library, "nvrtcDestroyProgram", l.DestroyProgram) &&
         find(library, "nvrtcCompileProgram", l.CompileProgram) &&
         find(library, "nvrtcGetCUBINSize", l.GetCUBINSize) &&
         find(library, "nvrtcGetCUBIN", l.GetCUBIN) &&
         find(library, "nvrtcGetPTXSize", l.GetPTXSize) && find(library, "nvrtcGetPTX", l.GetPTX) &&
         find(library, "nvrtcGetProgramLogSize", l.GetProgramLogSize) &&
         find(library, "nvrtcGetProgramLog", l.GetProgramLog);
}

// NVRTC opens its built-in functions by their bare name at the first compilation, where the
// loader's path need not lead: so they are loaded before, by their path, for all to see.
void load_builtins(const Library& library) {
  const fs::path folder = fs::path(library.path).parent_path();
  const std::string version = std::to_string(library.major) + "." + std::to_string(library.minor);
  for (const fs::path& file : sorted_entries(folder, "libnvrtc-builtins.so." + version)) {
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  }
}

// Why the library of that name or path is none; empty: it is loaded.
std::string open(const std::string& name, Library& library) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  if (!find_all(handle, library) ||
      library.Version(&library.major, &library.minor) != Status::success) {
    return name + " lacks functions of NVRTC";
  }
  if (library.major * 100 + library.minor < 1208) {
    return name + " is of CUDA " + std::to_string(library.major) + "." +
           std::to_string(library.minor) + ", older than 12.8";
  }
  library.path = file_of(reinterpret_cast<const void*>(library.Version)).string();
  load_builtins(library);
  return "";
}

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

// The files that may be the compiler, likeliest first.
std::vector<std::string> candidates() {
  if (const std::string given = flags::nvrtc(); !given.empty()) return {given};
  std::vector<std::string> files;
  for (const fs::path& folder : search_folders()) {
    for (const char* name : kNames) {
      std::error_code error;
      if (fs::exists(folder / name, error)) files.push_back((folder / name).string());
    }
  }
  // Where the loader looks.
  files.insert(files.end(), std::begin(kNames), std::end(kNames));
  return files;
}

Library load() {
  Library library = {};
  std::string reasons;
  for (const std::string& file : candidates()) {
    const std::string problem = open(file, library);
    if (problem.empty()) return library;
    if (file.starts_with('/') || !flags::nvrtc().empty()) reasons += " (" + problem + ")";
  }
  library.problem = (flags::nvrtc().empty() ? "NVRTC was not found" : "CODA_NVRTC is no compiler") +
                    reasons + "; " + kInstall;
  return library;
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

const Library& need_library() {
  if (!library().problem.empty()) throw Unsupported(library().problem, "");
  return library();
}

// ---- compiling ----

class Unit {
 public:
  Unit(const Library& library, std::string_view name, std::string_view page,
       std::span<const DeviceFile> files)
      : library_(library), name_(name), page_(page) {
    std::vector<const char*> names;
    std::vector<const char*> texts;
    for (const DeviceFile& file : files) {
      names.push_back(file.name.c_str());
      texts.push_back(file.text.c_str());
    }
    const std::string file = name_ + ".cu";
    need(library.CreateProgram(&handle_, page_.c_str(), file.c_str(),
                               static_cast<int>(files.size()), texts.data(), names.data()),
         "nvrtcCreateProgram");
  }
  ~Unit() { library_.DestroyProgram(&handle_); }
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  // The log. Throws where the page does not compile.
  std::string compile(const std::vector<std::string>& flags) {
    std::vector<const char*> pointers;
    for (const std::string& flag : flags) pointers.push_back(flag.c_str());
    const Status status =
        library_.CompileProgram(handle_, static_cast<int>(pointers.size()), pointers.data());
    std::string log = text(library_.GetProgramLogSize, library_.GetProgramLog, "log");
    if (status == Status::success) return log;
    if (status == Status::invalid_option) {
      throw Unsupported("NVRTC " + version() + " (" + library_.path + ") refuses the options for " +
                            name_ + ": " + first_errors(log, name_, page_),
                        kInstall);
    }
    if (status == Status::compilation) {
      throw InternalError("the CUDA page of " + name_ + " does not compile:\n" +
                          first_errors(log, name_, page_));
    }
    need(status, "nvrtcCompileProgram");
    return log;
  }

  std::string cubin() { return text(library_.GetCUBINSize, library_.GetCUBIN, "cubin"); }
  std::string ptx() { return text(library_.GetPTXSize, library_.GetPTX, "PTX"); }
  std::string version() const {
    return std::to_string(library_.major) + "." + std::to_string(library_.minor);
  }

 private:
  void need(Status status, const std::string& call) const {
    if (status == Status::success) return;
    throw InternalError("program " + name_ + ": " + call + " of NVRTC " + version() +
                        " failed: " + library_.GetErrorString(status));
  }

  // NOTE: logs and PTX end with a null character that their sizes count; a cubin has none.
  std::string text(Status (*size)(Handle, std::size_t*), Status (*get)(Handle, char*),
                   const std::string& what) const {
    std::size_t bytes = 0;
    need(size(handle_, &bytes), "getting the " + what);
    std::string out(bytes, '\0');
    if (bytes > 0) need(get(handle_, out.data()), "getting the " + what);
    if (what != "cubin") out.resize(std::min(bytes, out.find('\0')));
    return out;
  }

  const Library& library_;
  std::string name_;
  std::string page_;
  Handle handle_ = nullptr;
};

// ---- reading the log ----

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The number that stands before `unit` ("940 bytes spill stores", before " bytes spill stores"), or
// 0.
std::int64_t number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  return std::strtoll(std::string(line.substr(begin, end - begin)).c_str(), nullptr, 10);
}

// What stands between `before` and `after`, or empty.
std::string_view between(std::string_view line, std::string_view before, std::string_view after) {
  const std::size_t begin = line.find(before);
  if (begin == std::string_view::npos) return {};
  line.remove_prefix(begin + before.size());
  return line.substr(0, line.find(after));
}

}  // namespace

std::vector<std::string> compile_flags(const CompileOptions& options) {
  std::vector<std::string> flags = {"--gpu-architecture=" + options.architecture, "--std=c++17",
                                    "--device-as-default-execution-space", "--ptxas-options=-v"};
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  return flags;
}

Compiled compile(std::string_view name, std::string_view page, std::span<const DeviceFile> files,
                 const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Unit unit(need_library(), name, page, files);
  Compiled compiled{.cubin = {}, .log = unit.compile(compile_flags(options)), .entries = {}};
  if (const auto fault = fault_in_log(compiled.log)) {
    throw InternalError("the CUDA page of " + std::string(name) + ": " + *fault);
  }
  compiled.cubin = unit.cubin();
  compiled.entries = parse_resources(compiled.log);
  compiled.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return compiled;
}

std::string compile_ptx(std::string_view name, std::string_view page,
                        std::span<const DeviceFile> files, const CompileOptions& options) {
  CompileOptions virtual_target = options;
  if (virtual_target.architecture.starts_with("sm_")) {
    virtual_target.architecture.replace(0, 3, "compute_");
  }
  std::vector<std::string> flags = compile_flags(virtual_target);
  std::erase_if(flags, [](const std::string& f) { return f.starts_with("--ptxas-options"); });
  Unit unit(need_library(), name, page, files);
  unit.compile(flags);
  return unit.ptx();
}

Nvrtc nvrtc() {
  const Library& l = need_library();
  return {.path = l.path, .version = std::to_string(l.major) + "." + std::to_string(l.minor)};
}

std::string nvrtc_identity() {
  static const std::string identity = [] {
    const std::string file = candidates().front();
    std::error_code error;
    // The version has no place in the file's name; two releases of one differ in size.
    const std::uintmax_t bytes = fs::file_size(file, error);
    if (!error) return fs::path(file).filename().string() + " " + std::to_string(bytes);
    if (!library().problem.empty()) return std::string("none");
    return std::to_string(library().major) + "." + std::to_string(library().minor);
  }();
  return identity;
}

std::optional<std::string> nvrtc_problem() {
  if (library().problem.empty()) return std::nullopt;
  return library().problem;
}

std::vector<Compiled::Entry> parse_resources(std::string_view log) {
  std::vector<Compiled::Entry> entries;
  for (const std::string_view line : lines_of(log)) {
    if (const auto name = between(line, "Compiling entry function '", "'"); !name.empty()) {
      entries.push_back({.name = std::string(name)});
      continue;
    }
    if (entries.empty()) continue;
    Compiled::Entry& entry = entries.back();
    // The properties of functions that were not inlined follow those of the kernel that calls them:
    // their spills are the kernel's.
    if (line.find(" bytes stack frame") != std::string_view::npos) {
      entry.stack += number_before(line, " bytes stack frame");
      entry.spill_stores += static_cast<int>(number_before(line, " bytes spill stores"));
      entry.spill_loads += static_cast<int>(number_before(line, " bytes spill loads"));
    }
    if (line.find("Used ") != std::string_view::npos) {
      entry.registers = static_cast<int>(number_before(line, " registers"));
      entry.shared = number_before(line, " bytes smem");
    }
  }
  return entries;
}

std::optional<std::string> fault_in_log(std::string_view log) {
  for (const std::string_view line : lines_of(log)) {
    const bool serialised = line.find("C7511") != std::string_view::npos ||
                            (line.find("wgmma") != std::string_view::npos &&
                             line.find("serializ") != std::string_view::npos);
    if (serialised) {
      return "its products (wgmma) were serialised, at half the speed or less: " +
             std::string(line);
    }
  }
  return std::nullopt;
}

std::string first_errors(std::string_view log, std::string_view name, std::string_view page) {
  constexpr int kMost = 3;     // errors
  constexpr int kExcerpt = 4;  // lines of the log an error: the message, the text, the caret
  constexpr int kBefore = 3;   // lines of the page before the error's: a statement's comment
  const std::string file = std::string(name) + ".cu(";
  const std::vector<std::string_view> text = lines_of(page);
  std::string out;
  int errors = 0;
  int left = 0;
  for (const std::string_view line : lines_of(log)) {
    // "page.cu(3): error: …" and "nvrtc: error: …"; "ptxas …, line 7; error   : …".
    if (line.find("error:") != std::string_view::npos ||
        line.find("error   :") != std::string_view::npos) {
      if (++errors > kMost) break;
      left = kExcerpt;
      const int at = std::atoi(std::string(between(line, file, ")")).c_str());
      for (int i = std::max(1, at - kBefore); i < at && at <= static_cast<int>(text.size()); ++i) {
        out +=
            "  " + std::to_string(i) + " | " + std::string(text[static_cast<size_t>(i) - 1]) + "\n";
      }
    }
    if (left-- > 0 && !line.empty()) out += std::string(line) + "\n";
  }
  if (out.empty()) out = log;
  while (out.ends_with('\n')) out.pop_back();
  return out;
}

}  // namespace coda::cuda
