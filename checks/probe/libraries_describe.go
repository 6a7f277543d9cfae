package probe

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Fact is one line of the description of a node, for a person.
type Fact struct {
	Thing  string `json:"thing"`  // "CPU", "InfiniBand"
	Found  bool   `json:"found"`  // false: this node has none
	Detail string `json:"detail"` // the found file or value, or the searched directories
}

// DescribeLibrary finds a vendor's library and its version.
func DescribeLibrary(ctx context.Context, h *Host, v *vendorLibrary, cuda int) Fact {
	fact := func(path, name, from string) Fact {
		version, _ := v.describe(path, name)
		text := path
		if version != "" && (!v.ofGPU || strings.Contains(version, ".")) { // 1 is the number of libcuda's interface
			text += ", version " + version
		}
		return Fact{Thing: v.thing, Found: true, Detail: text + " (" + from + ")"}
	}
	if path := h.libraries[v.Setting]; path != "" {
		file, err := "", errNoAnswer
		var answer struct {
			file string
			err  error
		}
		if runInTime(searchLimit, func() {
			if answer.file, answer.err = TrustedLibrary(path, true); answer.err == nil {
				_, answer.err = readMachine(answer.file)
			}
		}) {
			file, err = answer.file, answer.err
		} else {
			h.addUnanswered("read " + filepath.Dir(path))
		}
		if err != nil {
			return Fact{Thing: v.thing, Detail: fmt.Sprintf("%s of %s is not used: %v", path, v.Setting, err)}
		}
		return fact(file, path, v.Setting)
	}
	named, refused := findNamedLibraries(h, v, cuda)
	if len(named) > 0 {
		return fact(named[0], named[0], SettingLibraryDirs)
	}
	if h.Recorded() {
		return Fact{Thing: v.thing, Detail: "not in " + SettingLibraryDirs + appendReasons(refused)}
	}
	cached := readLoaderCache(ctx, h)
	for _, name := range v.listSonames(cuda) {
		if path := cached[name]; path != "" {
			if file, err := filepath.EvalSymlinks(path); err == nil {
				return fact(file, path, "ld.so")
			}
		}
	}
	known, more := findKnownLibraries(h, v, cuda)
	if len(known) > 0 {
		return fact(known[0], known[0], "known place")
	}
	text := "looked for " + strings.Join(v.Names, ", ") + " in " + strings.Join(v.describePlaces(), ", ") + "; " + v.Setting + " or " + SettingLibraryDirs + " names one"
	return Fact{Thing: v.thing, Detail: text + appendReasons(append(refused, more...))}
}

// readLoaderCache returns the libraries of the system's loader by name.
func readLoaderCache(ctx context.Context, h *Host) map[string]string {
	x := h.RunOnce(ctx, "ldconfig -p", Command{Argv: []string{"ldconfig", "-p"}, Env: PerftestEnv, Timeout: 2 * time.Second, Output: 4 << 20})
	known := map[string]string{}
	for line := range strings.Lines(string(x.Output)) { // \tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " (")
		_, path, ok := strings.Cut(rest, ") => ")
		if !ok || known[name] != "" || !slices.ContainsFunc(VendorLibraries, func(v *vendorLibrary) bool { return slices.Contains(v.Names, name) }) {
			continue
		}
		if of, err := readMachine(path); err == nil && of == machine.of {
			known[name] = path
		}
	}
	return known
}

// PerftestEnv selects the number format of the C locale.
var PerftestEnv = []string{"LC_ALL=C", "LANG=C"}
