package need

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maySkip has the functions that may skip a test in CI, too, with the reason.
var maySkip = map[string]string{
	"checks/checktest/family.go FamilyAll":                    "TestFamily writes the same files",
	"checks/checktest/alone.go Alone":                         "repeats the skip of its second process",
	"checks/probe/jobscan/sysvipc_test.go makeIPC":            "a kernel without System V IPC",
	"checks/probe/network/module_test.go":                     "a kernel without generic netlink",
	"checks/probe/network/sockdiag_test.go":                   "a kernel without sock_diag",
	"checks/probe/network/sockets_test.go":                    "a limit of open files",
	"checks/probe/cpu/streamplace_test.go":                    "a kernel for one NUMA node",
	"checks/probe/cpu/stream_test.go":                         "too little memory",
	"checks/probe/cuda/kernels_test.go TestPTXIsOfItsSource":  "the Makefile's version of clang, which TestPTXIsUpToDate does not need",
	"checks/probe/kmsg_test.go":                               "a kernel that does not show its log",
	"checks/active/cpu_stream_test.go TestCPUStreamHere":      "a busy machine, or too little memory",
	"checks/active/disk_write_test.go":                        "a busy machine, or too little space",
	"checks/active/ib_bw_test.go":                             "RDMA devices, where the test wants none",
	"checks/session/node/worker_test.go":                      "a syslog, which takes the report",
	"checks/run/worker/result_test.go":                        "a kernel without the clock of the boot",
	"checks/run/worker/state_test.go TestLockNamesSupervisor": "a container whose process 1 is the test",
	"tests/packaging/roots_test.go":                           "no mirror of that release, or a shallow copy of the repository",
	"tests/packaging/release_test.go":                         "a machine that is not x86-64",
	"tests/packaging/arm64_test.go":                           "a machine that is not x86-64, or an older kernel",
	"tests/monitoring/monitoring_test.go":                     "a program that no package has",
	"tests/slurm/accounting_test.go":                          "a Slurm without slurmdbd",
	"tests/slurm/monitor_test.go TestMonitorCPUs":             "one CPU",
	"tests/stuck/locked_test.go TestLockedMemory":             "repeats the skip of its second process",
	"tests/lbnl/lbnl_test.go":                                 "faults of the original, in pending.txt",
	"tests/bench/cost_test.go":                                "runs in make bench",
	"cmd/nhc-gpu/runtime_test.go":                             "an older kernel",
}

// A test that skips without [Skip] and its like skips in CI, too, and no one sees that it tests nothing there.
func TestSkipsAreKnown(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	unused := map[string]bool{}
	for key := range maySkip {
		unused[key] = true
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "tests/need" || name == "tests/tier" || strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "testdata"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` }) {
			return nil
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, pos := range skips(fn) {
				keys := []string{name, name + " " + fn.Name.Name}
				if !slices.ContainsFunc(keys, func(k string) bool { return maySkip[k] != "" }) {
					t.Errorf("%s: want need.Skip, or a reason in maySkip", set.Position(pos))
				}
				for _, key := range keys {
					delete(unused, key)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key := range unused {
		t.Errorf("%s does not skip: remove it from maySkip", key)
	}
}

// skips returns the calls that skip a test other than those of this package.
func skips(fn *ast.FuncDecl) (list []token.Pos) {
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		of, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, of.Sel.Name) {
			return true
		}
		if pkg, ok := of.X.(*ast.Ident); !ok || pkg.Name != "need" {
			list = append(list, call.Pos())
		}
		return true
	})
	return list
}
