package probe

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNoLibrary means that a vendor's library is not installed on this node.
var ErrNoLibrary = errors.New("not found")

// ErrOtherNode means that the node is recorded, so this machine's library does not know its GPUs.
// It matches ErrNoLibrary, as on a node without GPUs.
var ErrOtherNode = fmt.Errorf("%w for a recorded node", ErrNoLibrary)

// These settings name a file for each vendor library, instead of the file that the system's loader
// would find.
const (
	SettingNVML     = "NVML_LIBRARY"
	SettingCUDA     = "CUDA_LIBRARY"
	SettingNCCL     = "NCCL_LIBRARY"
	SettingCUBLASLt = "CUBLASLT_LIBRARY"
	SettingDCGM     = "DCGM_LIBRARY"

	// SettingLibraryDirs names directories to search before the system's loader: separated by
	// colons, each may be a pattern of filepath.Match.
	SettingLibraryDirs = "LIBRARY_DIRS"
)

// SetLibraries takes the settings of vendor libraries from variables. It must be called before a
// library is first loaded.
func SetLibraries(h *Host, vars map[string]string) {
	h.libraries = map[string]string{}
	for _, s := range []string{SettingNVML, SettingCUDA, SettingNCCL, SettingCUBLASLt, SettingDCGM, SettingLibraryDirs} {
		if vars[s] != "" {
			h.libraries[s] = vars[s]
		}
	}
}

// LoadLibrary calls open for the candidate files of a library until one loads, in this order: the
// file that its setting names, and no other if it is set; LIBRARY_DIRS; the system's loader; the
// directories of installers. It skips the last two for a recorded node, because they belong to this
// machine. cuda is the major version of CUDA that the driver supports, 0 if unknown. The error is
// [ErrNoLibrary] if there is no file.
func LoadLibrary[T any](h *Host, v *vendorLibrary, cuda int, open func(path string) (T, error)) (loaded T, err error) {
	if path := h.libraries[v.Setting]; path != "" {
		file, err := TrustedLibrary(path, true)
		if err != nil {
			return loaded, fmt.Errorf("load %s of %s: not used: %w", path, v.Setting, err)
		}
		return open(file)
	}
	none := fmt.Errorf("load %s: %w", v.Names[0], ErrNoLibrary)
	var broken error // the first existing file that does not load
	try := func(paths ...string) bool {
		for _, path := range paths {
			if loaded, err = open(path); err == nil {
				return true
			}
			missing := errors.Is(err, ErrNoLibrary)
			if broken == nil && (!missing || IsDamaged(err)) {
				broken = err
			}
			if v.ofGPU && !missing { // the driver has refused: another file of its library would only repeat the call
				return true
			}
		}
		return false
	}
	named, refused := findNamedLibraries(h, v, cuda)
	if try(named...) {
		return loaded, err
	}
	if h.Recorded() {
		none = fmt.Errorf("load %s: %w below %s; %s names one", v.Names[0], ErrOtherNode, h.root, v.Setting)
	} else {
		if try(v.listSonames(cuda)...) {
			return loaded, err
		}
		known, more := findKnownLibraries(h, v, cuda)
		if refused = append(refused, more...); try(known...) {
			return loaded, err
		}
	}
	if broken != nil {
		return loaded, broken
	}
	if len(refused) > 0 {
		return loaded, fmt.Errorf("%w%s", none, appendReasons(refused))
	}
	return loaded, none
}

// TrustedLibrary resolves a path and returns the file's own path, without symbolic links. A library
// that is loaded runs as root. So root, or the user of this process, must own each directory, each
// link and the file, and they must not be world-writable. A sticky directory such as /tmp may be,
// since no user can replace another user's files in it. They may be group-writable only if the
// administrator has named the file (group). TrustedLibrary leaves a name without a slash to the
// system's loader, and a missing file to dlopen.
func TrustedLibrary(path string, group bool) (string, error) {
	if !strings.Contains(path, "/") {
		return path, nil
	}
	whole, err := filepath.Abs(path)
	if err != nil {
		return path, nil
	}
	at, rest, links := "/", strings.Split(whole, "/"), 0
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return path, nil
		}
		if err := ownedByRoot(next, info, group); err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if links++; err != nil || links > 40 {
			return path, nil
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, nil
}

func ownedByRoot(path string, info fs.FileInfo, group bool) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	mode := info.Mode()
	switch {
	case ok && st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s is owned by uid %d, want root", path, st.Uid)
	case mode&fs.ModeSymlink != 0 || mode.IsDir() && mode&fs.ModeSticky != 0:
	case mode.Perm()&0o002 != 0:
		return fmt.Errorf("%s is writable by others (mode %04o)", path, mode.Perm())
	case !group && ok && mode.Perm()&0o020 != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid():
		return fmt.Errorf("%s is writable by group %d (mode %04o)", path, st.Gid, mode.Perm())
	}
	return nil
}

// vendorLibrary is a library that is loaded if a check needs it.
type vendorLibrary struct {
	thing   string   // its name in the output of --check
	Setting string   // names its file
	Names   []string // the names for the system's loader, the newest version first
	places  []string // patterns of the installers' directories
	oldest  int      // the oldest supported major version
	newest  int      // the newest; 0: any
	ofCUDA  bool     // its major version is CUDA's: the driver must support it
	ofGPU   bool     // it belongs to the driver: its version must be that of the loaded module
	version func(path string) (version string, cuda int)
}

// CUDAVersion is the key of the newest CUDA version that a loaded driver supports: 12040 is 12.4.
const CUDAVersion = "cuda version"

// CUDAMajor returns the major version of CUDA that the driver supports, 0 if unknown.
func CUDAMajor(h *Host) int {
	if version, ok := Remembered[int](h, CUDAVersion); ok {
		return version.Value / 1000
	}
	driver, _ := DriverVersion(h)
	return lookUpDriverCUDA(driver)
}

// lookUpDriverCUDA returns the major version of CUDA that a release of the driver supports, 0 if unknown:
// CUDA Toolkit Release Notes, minimum driver for minor version compatibility.
func lookUpDriverCUDA(driver string) int {
	branch, _, _ := strings.Cut(driver, ".")
	n, _ := strconv.Atoi(branch)
	switch {
	case n >= 580:
		return 13
	case n >= 525:
		return 12
	case n >= 450:
		return 11
	}
	return 0
}

// machine has the names of this processor in directory names.
var machine = map[string]struct {
	of        elf.Machine
	uname     string // HPC SDK: Linux_x86_64
	multiarch string // Debian: /usr/lib/x86_64-linux-gnu
	targets   string // CUDA toolkit: targets/x86_64-linux
}{
	"amd64": {elf.EM_X86_64, "x86_64", "x86_64-linux-gnu", "x86_64-linux"},
	"arm64": {elf.EM_AARCH64, "aarch64", "aarch64-linux-gnu", "sbsa-linux"},
}[runtime.GOARCH]

// loaderPlaces are the directories of the system's loader on most distributions, for a node on
// which ldconfig has not run.
var loaderPlaces = []string{"/usr/lib64", "/usr/lib/" + machine.multiarch, "/lib64", "/lib/" + machine.multiarch}

// Sources of these directories: CUDA Installation Guide for Linux (cuda-*, targets), NVIDIA HPC SDK
// Installation Guide (Linux_*/RELEASE/{math_libs,comm_libs}), container-optimized systems and
// device plugins, which mount the driver at /usr/local/nvidia.
var (
	toolkitPlaces = []string{
		"/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64", "/usr/local/cuda-*/targets/" + machine.targets + "/lib",
		"/opt/cuda/lib64", "/opt/cuda-*/lib64",
	}
	hpcSDK       = "/opt/nvidia/hpc_sdk/Linux_" + machine.uname + "/*/"
	driverPlaces = []string{"/usr/lib64/nvidia", "/usr/lib/" + machine.multiarch + "/nvidia/current", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"}
)

// These are the libraries.
var (
	LibNVML = vendorLibrary{
		thing: "NVML library", Setting: SettingNVML, Names: []string{"libnvidia-ml.so.1"}, places: slices.Concat(loaderPlaces, driverPlaces), ofGPU: true,
	}
	LibCUDA = vendorLibrary{
		thing: "CUDA library", Setting: SettingCUDA, Names: []string{"libcuda.so.1"}, places: slices.Concat(loaderPlaces, driverPlaces), ofGPU: true,
	}
	LibCUBLASLt = vendorLibrary{
		thing: "cuBLASLt", Setting: SettingCUBLASLt, oldest: 11, newest: 13, ofCUDA: true, // all have the same interface
		Names:  []string{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"},
		places: slices.Concat(loaderPlaces, toolkitPlaces, []string{hpcSDK + "math_libs/lib64", hpcSDK + "math_libs/*/lib64", hpcSDK + "math_libs/*/targets/" + machine.targets + "/lib"}),
	}
	LibNCCL = vendorLibrary{
		thing: "NCCL", Setting: SettingNCCL, Names: []string{"libnccl.so.2"}, oldest: 2, version: readNCCLVersion,
		places: slices.Concat(loaderPlaces, toolkitPlaces, []string{hpcSDK + "comm_libs/nccl/lib", hpcSDK + "comm_libs/*/nccl/lib", "/opt/nccl/build/lib", "/opt/nccl/lib", "/usr/local/nccl*/lib"}),
	}
	LibDCGM = vendorLibrary{
		thing: "DCGM library", Setting: SettingDCGM, Names: []string{"libdcgm.so.4"}, oldest: 4, newest: 4, places: loaderPlaces,
	}
	VendorLibraries = []*vendorLibrary{&LibNVML, &LibCUDA, &LibCUBLASLt, &LibNCCL, &LibDCGM}
)

// describePlaces returns the searched directories of a library for a person, each shortened to three
// levels.
func (v *vendorLibrary) describePlaces() []string {
	list := []string{"ld.so's paths"}
	for _, place := range v.places {
		folders := strings.Split(place, "/")
		brief := strings.Join(folders[:min(4, len(folders))], "/")
		if !slices.Contains(loaderPlaces, place) && !slices.Contains(list, brief) {
			list = append(list, brief)
		}
	}
	return list
}

// listSonames returns the names for the system's loader with a driver of that CUDA version.
func (v *vendorLibrary) listSonames(cuda int) []string {
	if !v.ofCUDA || cuda == 0 {
		return v.Names
	}
	return slices.DeleteFunc(slices.Clone(v.Names), func(name string) bool {
		major, _ := strconv.Atoi(name[strings.LastIndexByte(name, '.')+1:])
		return major > cuda
	})
}

// libraryFile is a file that may be the library.
type libraryFile struct {
	path    string // without symbolic links
	version string // 12.4.5.8; "" if unknown
}

// searchLimit bounds the search: a directory may lie on a file server that is dead.
const searchLimit = 3 * time.Second

// findNamedLibraries returns the files of a library below LIBRARY_DIRS, the newest first, and why
// others are not used.
func findNamedLibraries(h *Host, v *vendorLibrary, cuda int) (paths, refused []string) {
	return searchLibrary(h, v, cuda, filepath.SplitList(h.libraries[SettingLibraryDirs]), true)
}

// findKnownLibraries returns those in the directories of installers.
func findKnownLibraries(h *Host, v *vendorLibrary, cuda int) (paths, refused []string) {
	return searchLibrary(h, v, cuda, v.places, false)
}

func searchLibrary(h *Host, v *vendorLibrary, cuda int, dirs []string, named bool) (paths, refused []string) {
	s := librarySearch{v: v, cuda: cuda, group: named}
	if v.ofGPU && !named {
		if s.driver, _ = DriverVersion(h); s.driver == "" {
			return nil, nil // no driver is loaded: its library is useless
		}
	}
	unanswered := h.Unanswered()
	asked := func(dir string) bool {
		return !slices.Contains(unanswered, "read "+searched(dir)) && h.StuckAt(searched(dir)) == nil
	}
	for _, dir := range dirs {
		if !asked(dir) {
			s.refused = append(s.refused, searched(dir)+": "+errNoAnswer.Error())
		}
	}
	dirs = slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool { return !asked(dir) })
	if len(dirs) == 0 {
		return nil, s.refused
	}
	if !runInTime(searchLimit, func() { s.search(dirs) }) {
		at := s.place()
		h.addUnanswered("read " + at)
		return nil, []string{at + ": " + errNoAnswer.Error()}
	}
	for _, f := range s.found {
		paths = append(paths, f.path)
	}
	return paths, s.refused
}

// librarySearch searches directories for the files of one library.
type librarySearch struct {
	v      *vendorLibrary
	cuda   int    // that the driver supports; 0: unknown
	driver string // the version that the file must have; "": any
	group  bool   // see [TrustedLibrary]

	mu      sync.Mutex // guards at
	at      string     // the directory that is being searched
	found   []libraryFile
	refused []string
}

func (s *librarySearch) place() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *librarySearch) search(dirs []string) {
	base, _, _ := strings.Cut(s.v.Names[0], ".so.")
	seen := map[string]bool{}
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			s.refused = append(s.refused, dir+" of "+SettingLibraryDirs+" is not an absolute path")
			continue
		}
		s.mu.Lock()
		s.at = searched(dir)
		s.mu.Unlock()
		names, _ := filepath.Glob(filepath.Join(dir, base+".so.*"))
		for _, name := range names {
			if !s.named(name) {
				continue
			}
			path, err := TrustedLibrary(name, s.group)
			if err != nil { // reported once for all names of one library
				if text := fmt.Sprintf("%s: %v", name, err); !slices.ContainsFunc(s.refused, func(said string) bool { return strings.HasSuffix(said, err.Error()) }) {
					s.refused = append(s.refused, text)
				}
				continue
			}
			if !seen[path] {
				seen[path] = true
				s.take(path, name)
			}
		}
	}
	slices.SortStableFunc(s.found, func(a, b libraryFile) int { return CompareVersions(b.version, a.version) })
}

// searched returns the part of a directory pattern before its first star.
func searched(dir string) string {
	at, _, _ := strings.Cut(dir, "*")
	return at
}

// named reports whether a file has one of the names that programs load: libcublasLt.so.12, for
// which libcublasLt.so.12.4.5 is another name.
func (s *librarySearch) named(path string) bool {
	_, number, _ := strings.Cut(filepath.Base(path), ".so.")
	return strings.Trim(number, "0123456789") == ""
}

// take decides whether a file can be used.
func (s *librarySearch) take(path, name string) {
	not := func(format string, args ...any) {
		s.refused = append(s.refused, path+": "+fmt.Sprintf(format, args...))
	}
	of, err := readMachine(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return // a dangling link
	case err != nil:
		not("%v", err)
		return
	case of != machine.of:
		not("built for %s, want %s", strings.TrimPrefix(of.String(), "EM_"), strings.TrimPrefix(machine.of.String(), "EM_"))
		return
	}
	version, cuda := s.v.describe(path, name)
	_, major, _ := strings.Cut(filepath.Base(name), ".so.")
	number, _ := strconv.Atoi(major)
	if s.v.ofCUDA {
		cuda = number
	}
	switch {
	case number < s.v.oldest:
		not("version %s is too old, want %d or newer", version, s.v.oldest)
	case s.v.newest > 0 && number > s.v.newest:
		not("version %s is not supported, want at most %d", version, s.v.newest)
	case s.cuda > 0 && cuda > s.cuda:
		not("it needs a driver of CUDA %d, this one supports CUDA %d", cuda, s.cuda)
	case s.driver != "" && version != s.driver:
		not("version %s, the loaded driver is %s", version, s.driver)
	default:
		s.found = append(s.found, libraryFile{path, version})
	}
}

// describe returns the version of a file, and the major version of the CUDA that it was built for,
// 0 if unknown.
func (v *vendorLibrary) describe(path, name string) (version string, cuda int) {
	_, version, _ = strings.Cut(filepath.Base(path), ".so.")
	if _, short, ok := strings.Cut(filepath.Base(name), ".so."); version == "" && ok {
		version = short
	}
	if v.version != nil {
		if inside, of := v.version(path); inside != "" {
			return inside, of
		}
	}
	return version, cuda
}

// readMachine returns the processor of a library.
func readMachine(path string) (elf.Machine, error) {
	f, err := elf.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		return 0, fmt.Errorf("not a shared library: %w", Reason(err))
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 {
		return elf.EM_NONE, errors.New("not a 64-bit library")
	}
	return f.Machine, nil
}

// ncclText matches a text in NCCL's library: NCCL version 2.22.3+cuda12.4.
var ncclText = Lazily(`NCCL version (\d+\.\d+\.\d+)[.\w]*\+cuda(\d+)\.`)

// maxTexts bounds the part of a library that is searched for its version, bytes.
const maxTexts = 64 << 20

func readNCCLVersion(path string) (version string, cuda int) {
	f, err := elf.Open(path)
	if err != nil {
		return "", 0
	}
	defer f.Close()
	texts := f.Section(".rodata")
	if texts == nil {
		return "", 0
	}
	data, err := io.ReadAll(io.LimitReader(texts.Open(), maxTexts))
	if err != nil {
		return "", 0
	}
	m := ncclText().FindSubmatch(data)
	if m == nil {
		return "", 0
	}
	cuda, _ = strconv.Atoi(string(m[2]))
	return string(m[1]), cuda
}

// CompareVersions compares dotted numbers; a part that is not a number counts as 0.
func CompareVersions(a, b string) int {
	for a != "" || b != "" {
		var x, y string
		x, a, _ = strings.Cut(a, ".")
		y, b, _ = strings.Cut(b, ".")
		m, _ := strconv.Atoi(x)
		n, _ := strconv.Atoi(y)
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return 0
}

// appendReasons appends the reasons why files are not used.
func appendReasons(refused []string) string {
	if len(refused) == 0 {
		return ""
	}
	return "; not used: " + strings.Join(refused, "; ")
}

// DriverVersion returns the version of the loaded NVIDIA kernel module: "570.148.08". The error is
// [fs.ErrNotExist] if none is loaded.
func DriverVersion(h *Host) (string, error) {
	return Once(h, "nvidia driver version", func() (string, error) {
		const path = NvProc + "/version"
		data, err := h.ReadFile(path)
		if err != nil {
			return "", err
		}
		version := ParseDriverVersion(string(data))
		if version == "" {
			return "", &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
		}
		return version, nil
	})
}

// ParseDriverVersion finds the version in the module's text, in /proc/driver/nvidia/version or in
// its first line in the kernel's log:
//
// NVRM version: NVIDIA UNIX x86_64 Kernel Module 535.183.01 Sun May 12 19:39:15 UTC 2024
// NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64 570.148.08 Release Build
func ParseDriverVersion(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	_, rest, ok := strings.Cut(line, "Kernel Module")
	if !ok {
		return ""
	}
	for word := range strings.FieldsSeq(rest) {
		if strings.Trim(word, "0123456789.") == "" && strings.Contains(strings.Trim(word, "."), ".") {
			return word
		}
	}
	return ""
}

// NvProc is the directory with the GPUs of NVIDIA's kernel module.
const NvProc = "/proc/driver/nvidia"
