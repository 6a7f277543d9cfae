package checks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// ownCodes are the codes that checks other than LBNL NHC's produce, with the file or the
// check that shows it: what checks declare, what their scenarios find, and every code that
// stands in the source.
func ownCodes(t *testing.T) map[string]string {
	t.Helper()
	codes, theirs := map[string]string{}, map[string]bool{}
	for _, name := range Names() {
		info, _ := Lookup(name)
		var list []string
		for code := range info.Do {
			list = append(list, code)
		}
		for _, s := range scenariosOf(name) {
			for _, f := range s.want {
				list = append(list, f.Code)
			}
		}
		for _, code := range list {
			if OfLBNL(name) {
				theirs[code] = true
			} else {
				codes[code] = name
			}
		}
	}
	for code := range sharedCodes {
		codes[code] = "every check"
	}
	for _, r := range messageTable().Rows {
		if r.Class != XidIgnore {
			codes[r.Code] = "klog.toml"
		}
	}
	for _, dir := range []string{".", "run", "../cmd/nhc-gpu", "../cmd/nhc-gpu/internal/*"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no source in %s: %v", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, code := range codesIn(t, file) {
				if !theirs[code] && codes[code] == "" {
					codes[code] = file
				}
			}
		}
	}
	return codes
}

var isCode = regexp.MustCompile(`^[a-z]+(\.[a-z0-9_-]+)+$`)

// codesIn returns the whole codes that stand in a file as the Code of a finding.
func codesIn(t *testing.T, file string) (codes []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	note := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if code, _ := strconv.Unquote(lit.Value); isCode.MatchString(code) {
				codes = append(codes, code)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if id, ok := n.Type.(*ast.Ident); ok && id.Name == "activeTest" {
				return false // whose code is the beginning of some
			}
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok && id.Name == "Code" {
				note(n.Value)
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if sel, ok := left.(*ast.SelectorExpr); ok && sel.Sel.Name == "Code" && i < len(n.Rhs) {
					note(n.Rhs[i])
				}
			}
		}
		return true
	})
	return codes
}

// family is the row with a star that a code falls under, "" if there is none.
func family(rows map[string]string, code string) string {
	for i := strings.LastIndexByte(code, '.'); i > 0; i = strings.LastIndexByte(code[:i], '.') {
		if _, ok := rows[code[:i]+".*"]; ok {
			return code[:i] + ".*"
		}
	}
	return ""
}

// TestCodes holds the rows of codes.toml against the codes that there are.
func TestCodes(t *testing.T) {
	t.Parallel()
	var table codeTable
	meta, err := toml.Decode(codesFile, &table)
	if err != nil || len(meta.Undecoded()) > 0 {
		t.Fatalf("codes.toml: %v, unknown keys %v", err, meta.Undecoded())
	}
	codes, used := ownCodes(t), map[string]bool{}
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		if _, ok := table.Words[code]; ok {
			used[code] = true
		} else if f := family(table.Words, code); f != "" {
			used[f] = true
		} else {
			t.Errorf("%s (%s) has no row in codes.toml", code, codes[code])
		}
		if words := Words(code); words == "" || len(words) > maxWords {
			t.Errorf("%s: words %q", code, words)
		}
	}
	for code, same := range table.Same { // the slurm package compares the words, too
		if Words(code) != Words(same) {
			t.Errorf("%s and %s are the same fault, with other words", code, same)
		}
	}
	for code := range maps.Keys(losses) {
		if _, ok := table.Words[code]; !ok {
			t.Errorf("%s is the code of no lost device", code)
		}
	}
	for code := range maps.Keys(counts) {
		if _, ok := table.Words[code]; !ok {
			t.Errorf("%s is the code of no number of devices", code)
		}
	}
	for code := range table.Words {
		if !used[code] {
			t.Errorf("codes.toml: no check produces %s", code)
		}
	}
}

// TestGoneIsLost: a device that is gone is lost; the reason names it, and not how many there are.
func TestGoneIsLost(t *testing.T) {
	t.Parallel()
	for code := range codeRows().Words {
		if strings.HasSuffix(code, ".gone") && !IsLoss(code) {
			t.Errorf("%s is no loss", code)
		}
	}
}

// TestWordsAreClear refuses words that are too long, or that two codes share which are not
// of one check: "gpu.temp.limit" and "nvme.temp" differ by their device.
func TestWordsAreClear(t *testing.T) {
	t.Parallel()
	plain := regexp.MustCompile(`^[A-Za-z0-9/&-]+( ([A-Za-z0-9/_&-]+|\*))*$`)
	about := func(code string) string { // "gpu.ecc"
		parts := strings.SplitN(code, ".", 3)
		return strings.Join(parts[:2], ".")
	}
	by := map[string]string{}
	shared := map[string]bool{ // the same thing, found by several checks
		"memory in use": true, "no state file": true, "unreadable": true, "throttled": true, "own kernels": true, "types skipped": true,
		"all wrong": true, "wrong result": true, "slow memory": true, "not measured": true, "link down": true, "no time left": true,
		"memory held": true, "slow NCCL": true, "slow overlap": true, "PCIe width": true, "left out": true, "lost": true, "no perftest": true, "no log file": true,
	}
	for _, code := range slices.Sorted(maps.Keys(codeRows().Words)) {
		words := codeRows().Words[code]
		if longest := strings.ReplaceAll(words, "*", "719"); len(longest) > maxWords || !plain.MatchString(words) {
			t.Errorf("%s: words %q: want at most %d plain characters", code, words, maxWords)
		}
		class, _, _ := strings.Cut(code, ".")
		key := class + " " + words
		if other := by[key]; other != "" && about(other) != about(code) && !shared[words] {
			t.Errorf("%s and %s have the same words, %q", other, code, words)
		}
		by[key] = code
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"gpu.recovery.lost": "lost", "gpu.xid.79": "lost", "gpu.xid.119": "Xid 119", "gpu.xid.ledger": "no state file", "gpu.sxid.12028": "SXid 12028",
		"cuda.error": "CUDA error", "cuda.error.719": "CUDA error 719", "dcgm.fr.15": "DCGM error 15", "dcgm.fr.unknown": "DCGM error",
		"ib.errors.symbol_error": "symbol errors", "ib.errors.rnr_nak_retry_err": "port errors",
		"gpu.nobody_wrote.a_row_for_this": "a row for this",
	} {
		if got := Words(code); got != want {
			t.Errorf("Words(%q) = %q, want %q", code, got, want)
		}
	}
}

// TestOfLBNL compares the list with the functions of LBNL NHC's own files.
func TestOfLBNL(t *testing.T) {
	t.Parallel()
	files, err := os.ReadFile("run/lbnlfiles.txt")
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]bool{}
	for w := range strings.FieldsSeq(string(files)) {
		theirs[w] = true
	}
	for _, name := range Names() {
		want := theirs[name] || strings.HasPrefix(name, "check_all_fs_")
		if OfLBNL(name) != want {
			t.Errorf("OfLBNL(%s) = %v, want %v", name, OfLBNL(name), want)
		}
	}
}

// TestEveryFailureHasARemedy refuses a failing finding of our own checks that leaves open
// what is to be done, and a remedy that is not in the list.
func TestEveryFailureHasARemedy(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		if OfLBNL(name) {
			continue
		}
		for _, s := range scenariosOf(name) {
			for _, f := range s.want {
				if _, known := remedies[f.Remedy]; !known {
					t.Errorf("%s: %s: remedy %q is not in the list", name, s.name, f.Remedy)
				}
				if f.Severity != Fail || f.Remedy != NoRemedy || strings.HasPrefix(f.Code, "dcgm.fr.") { // whose class a site may change
					continue
				}
				if _, ok := codeRows().Remedy[f.Code]; !ok {
					t.Errorf("%s: %s: %s fails without a remedy: give the finding one, or codes.toml", name, s.name, f.Code)
				}
			}
		}
	}
	for code, r := range codeRows().Remedy {
		if _, known := remedies[r]; !known && r != "none" || r == NoRemedy {
			t.Errorf("codes.toml: %s: remedy %q is not in the list", code, r)
		}
		if _, ok := codeRows().Words[code]; !ok && family(codeRows().Words, code) == "" {
			t.Errorf("codes.toml: %s has a remedy and no words", code)
		}
	}
	if got := RemedyOf(Finding{Code: "gpu.count", Severity: Fail, Remedy: RebootNode}); got != RebootNode {
		t.Errorf("a finding with a remedy: %q, want its own", got)
	}
	if got := RemedyOf(Finding{Code: "gpu.count", Severity: Fail}); got != PowerCycle {
		t.Errorf("gpu.count: remedy %q, want that of codes.toml", got)
	}
	if got := RemedyOf(Finding{Code: "gpu.count", Severity: Warn}) + RemedyOf(Finding{Code: "gpu.temp.limit", Severity: Fail}); got != NoRemedy {
		t.Errorf("a warning, and a code with none, have the remedy %q", got)
	}
}

// TestRemediesOfTables refuses a remedy in a data file that is not in the list.
func TestRemediesOfTables(t *testing.T) {
	t.Parallel()
	is := regexp.MustCompile(`remedy\s*=\s*"([^"]*)"`)
	files, err := filepath.Glob("*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no data files: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range is.FindAllStringSubmatch(string(data), -1) {
			if _, known := remedies[Remedy(m[1])]; !known && m[1] != "none" {
				t.Errorf("%s: remedy %q is not in the list", file, m[1])
			}
		}
	}
}
