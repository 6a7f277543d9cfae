package checktest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// beyond lists the findings in the code that no scenario can produce, and why.
var beyond = map[string]string{
	"gpu/fabric.go unseen: probe.unreadable":       "a process whose memory is locked: TestFabricUnseen",
	"active/gpu_launch.go report: gpu.launch.slow": "the CPU's own time: TestLaunchRoundTrip",
	"xid/gpu_xid.go Run: config.value":             "an error in TOML: TestXidWords",
	"fabric/kernel_log.go Run: config.value":       "an error in TOML: TestMessageWords",
	"fabric/kernel_log.go keep: klog.past":         "a full disk: TestMessagesThatCannotBeKept",
}

// reachable lists the files that scenarios must cover, by family.
var reachable = map[string][]string{
	"active":   {"gpu*.go", "ib_*.go"},
	"fabric":   {"ib_*.go", "eth_*.go", "kernel_log*.go"},
	"gpu":      {"*.go", "../gpustate/*.go"},
	"lbnl":     {"hw_edac.go", "net_route.go", "net_dns.go"},
	"pcie":     {"*.go"},
	"topology": {"nvme*.go", "hw_topology*.go"},
	"xid":      {"*.go"},
}

// checkReach rejects code that produces a finding if no scenario of the self-test executes it.
// This includes a second place with the same code. It uses the compiler's coverage counters.
func checkReach(t *testing.T, _ []string) {
	files := sourcesOf(t)
	if len(files) == 0 {
		return
	}
	program := buildCounting(t)
	inSelftest := runCovered(t, program, "^TestFamilyAll$/^Selftests$")
	var active []string
	for name, test := range testsOfChecks(t) {
		if info, _ := checks.Lookup(name); info.Active {
			active = append(active, test)
		}
	}
	inScenarios := map[string][]coverBlock{}
	if len(active) > 0 {
		inScenarios = runCovered(t, program, "^("+strings.Join(active, "|")+")$")
	}
	found := map[string]bool{}
	for _, f := range files {
		blocks, by := inSelftest, "the self-test"
		if ofActive(t, f) { // active tests need libraries that answer
			blocks, by = inScenarios, "its check"
		}
		for _, s := range findingSites(t, f) {
			place := underTest(t) + "/" + s.String()
			found[place] = true
			reached := slices.ContainsFunc(blocks[filepath.Base(f)], func(b coverBlock) bool { return b.has(s.line, s.column) && b.count > 0 })
			_, known := beyond[place]
			switch {
			case !reached && !known:
				t.Errorf("%s:%d: %s: no scenario of %s covers this finding", f, s.line, s, by)
			case reached && known:
				t.Errorf("%s:%d: %s: is covered: remove it from the list", f, s.line, s)
			}
		}
	}
	for name := range beyond {
		if strings.HasPrefix(name, underTest(t)+"/") && !found[name] {
			t.Errorf("%s: there is no such place", name)
		}
	}
}

// underTest returns the name of the package under test.
func underTest(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(dir)
}

// sourcesOf returns the files in [reachable] of the package under test.
func sourcesOf(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range reachable[underTest(t)] {
		match, err := filepath.Glob(pattern)
		if err != nil || len(match) == 0 {
			t.Fatalf("no file is %s: %v", pattern, err)
		}
		files = append(files, match...)
	}
	return slices.DeleteFunc(files, func(f string) bool {
		return strings.HasSuffix(f, "_test.go") || f == "clear.go" // a command of the operator
	})
}

var (
	activeInfo = checks.Lazily(`\bActive: +true\b`)
	ofFrame    = checks.Lazily(`(?i)\*(\w+\.)?(active|bw)Run\b`)
)

// ofActive reports whether a file belongs to an active test or to the family of one.
func ofActive(t *testing.T, file string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if ofFrame().Match(text) {
		return true
	}
	for name := strings.TrimSuffix(file, ".go"); name != ""; name = name[:max(strings.LastIndexByte(name, '_'), 0)] {
		if text, err := os.ReadFile(name + ".go"); err == nil && activeInfo().Match(text) {
			return true
		}
	}
	return false
}

// runCovered runs some tests of a program with coverage counters.
func runCovered(t *testing.T, program, run string) map[string][]coverBlock {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "cover.out")
	cmd := exec.CommandContext(t.Context(), program, "-test.run="+run, "-test.coverprofile="+profile)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { // variables that parallel tests set
		return strings.HasPrefix(v, "NCCL_") || strings.HasPrefix(v, "CUDA_")
	})
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	return coverBlocks(t, string(data))
}

// buildCounting builds that program.
func buildCounting(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "checks.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-coverpkg=.,../gpustate", "-ldflags=-s -w", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// coverBlock is a line of a profile: beginning, end, count.
type coverBlock struct{ line, column, endLine, endColumn, count int }

func (b coverBlock) has(line, column int) bool {
	return (b.line < line || b.line == line && b.column <= column) && (line < b.endLine || line == b.endLine && column < b.endColumn)
}

func coverBlocks(t *testing.T, profile string) map[string][]coverBlock {
	t.Helper()
	blocks := map[string][]coverBlock{}
	for line := range strings.Lines(profile) {
		path, rest, found := strings.Cut(line, ".go:")
		if !found {
			continue
		}
		var b coverBlock
		var statements int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.line, &b.column, &b.endLine, &b.endColumn, &statements, &b.count); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		f := filepath.Base(path) + ".go"
		blocks[f] = append(blocks[f], b)
	}
	return blocks
}

// findingSite is a place in the code that sets the code of a finding.
type findingSite struct {
	file, function, code string
	line, column         int
}

func (s findingSite) String() string { return s.file + " " + s.function + ": " + s.code }

// findingSites returns the sites of a file: a Finding with a code, and an assignment to Code.
func findingSites(t *testing.T, file string) (sites []findingSite) {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, d := range parsed.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		add := func(at ast.Node, code ast.Expr) {
			text := codeText(code)
			if times[fn.Name.Name+text]++; times[fn.Name.Name+text] > 1 {
				text = fmt.Sprintf("%s (%d)", text, times[fn.Name.Name+text])
			}
			p := set.Position(at.Pos())
			sites = append(sites, findingSite{file, fn.Name.Name, text, p.Line, p.Column})
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				addCodes(add, n.Type, n)                     // Finding{Code: "..."}
				if list, ok := n.Type.(*ast.ArrayType); ok { // []Finding{{Code: "..."}}
					for _, e := range n.Elts {
						if inner, ok := e.(*ast.CompositeLit); ok {
							addCodes(add, list.Elt, inner)
						}
					}
				}
			case *ast.AssignStmt: // f.Code, f.Severity = "...", Fail
				for i, left := range n.Lhs {
					if field, ok := left.(*ast.SelectorExpr); ok && field.Sel.Name == "Code" && len(n.Lhs) == len(n.Rhs) {
						add(n, n.Rhs[i])
					}
				}
			}
			return true
		})
	}
	return sites
}

func addCodes(add func(ast.Node, ast.Expr), of ast.Expr, lit *ast.CompositeLit) {
	if TypeName(of) != "Finding" {
		return
	}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok && codeText(kv.Key) == "Code" {
			add(kv, kv.Value)
		}
	}
}

// TypeName returns the name of a type without its package; "" for a list.
func TypeName(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.Ident:
		return of.Name
	case *ast.SelectorExpr:
		return of.Sel.Name
	}
	return ""
}

// codeText returns a code as in the source: "gpu.ecc.*" if it is composed, or the name of the
// variable or function that supplies it.
func codeText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strings.Trim(e.Value, `"`)
	case *ast.BinaryExpr:
		return codeText(e.X) + "*"
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return codeText(e.Fun) + "()"
	case *ast.Ident:
		return e.Name
	}
	return "?"
}
