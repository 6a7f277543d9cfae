package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all" // registers the variables of checks
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// eachFile visits the syntax tree of every Go file of the program.
func eachFile(t *testing.T, visit func(path string, file *ast.File)) {
	t.Helper()
	for _, dir := range []string{"checks", "cmd", "conf", "slurm"} {
		if err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err == nil {
				visit(path, file)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

var settingName = regexp.MustCompile(`^[A-Z][A-Z_]*[A-Z]$`)

// literal returns the text of a string literal that can be the name of a setting.
func literal(n ast.Node) string {
	if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		if text, err := strconv.Unquote(lit.Value); err == nil && settingName.MatchString(text) {
			return text
		}
	}
	return ""
}

// notSettings matches variables that a site does not set: the run itself, the system or Slurm sets
// them.
var notSettings = regexp.MustCompile(`^(FORCE_SETSID|HOSTNAME|HOSTNAME_S|NHC_DETACHED|PATH|PWD|USER|CUDA_(VISIBLE|MPS)_.*|SLURM_(HET_)?JOB_.*|SLURM_NODELIST|SLURM_NODE_IS_HEALTHY|SLURM_SCRIPT_CONTEXT)$`)

// TestSettings: docs/reference/settings.md has a row for each setting that the program reads, and
// the program reads each setting that has a row.
func TestSettings(t *testing.T) {
	t.Parallel()
	read := map[string]string{}
	for _, name := range slices.Concat(setting.OwnVars, conf.Chosen) {
		read[name] = "a setting of the run"
	}
	eachFile(t, func(path string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			name := ""
			switch f := call.Fun.(type) {
			case *ast.SelectorExpr:
				name = f.Sel.Name
			case *ast.Ident:
				name = f.Name
			}
			if text := literal(call.Args[0]); text != "" && slices.Contains([]string{"Get", "Lookup", "Array", "env"}, name) {
				read[text] = path
			}
			return true
		})
		if strings.HasSuffix(path, "/lint/setting.go") { // it judges the values of settings
			for _, d := range file.Decls {
				ast.Inspect(d, func(n ast.Node) bool {
					if spec, ok := n.(*ast.ValueSpec); ok && spec.Names[0].Name == "unused" {
						return false
					} else if ok && slices.ContainsFunc(spec.Names, func(i *ast.Ident) bool { return i.Name == "tooLate" || i.Name == "otherSettings" }) {
						ast.Inspect(spec, func(n ast.Node) bool {
							if text := literal(n); text != "" {
								read[text] = path
							}
							return true
						})
					}
					if pair, ok := n.(*ast.KeyValueExpr); ok {
						if text := literal(pair.Key); text != "" {
							read[text] = path
						}
					}
					return true
				})
			}
		}
	})
	ofChecks := checks.Variables() // docs/reference/checks has them
	page := readPages(t)["docs/reference/settings.md"]
	rows := map[string]bool{}
	for line := range strings.Lines(string(page.text)) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| `") {
			for i, name := range strings.Split(first, "`") {
				if i%2 == 1 {
					rows[name] = true
				}
			}
		}
	}
	_, last, _ := strings.Cut(string(page.text), "\n## Match strings and checks\n") // has no table
	for name := range strings.SplitSeq(last, "`") {
		if settingName.MatchString(name) {
			rows[name] = true
		}
	}
	if len(rows) < 40 {
		t.Fatalf("only %d settings in %s", len(rows), page.name)
	}
	for _, name := range slices.Sorted(maps.Keys(read)) {
		if _, ofCheck := ofChecks[name]; !rows[name] && !ofCheck && !notSettings.MatchString(name) {
			t.Errorf("%s has no row for %s (%s)", page.name, name, read[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if _, ofCheck := ofChecks[name]; read[name] == "" && !ofCheck {
			t.Errorf("%s has a row for %s, which the program does not read", page.name, name)
		}
	}
}

// TestExitStatuses: docs/reference/exit-status.md has each exit status that has a name in the
// program.
func TestExitStatuses(t *testing.T) {
	t.Parallel()
	page := readPages(t)["docs/reference/exit-status.md"]
	statuses := regexp.MustCompile(`^([eE]xit[A-Z][a-z]+|lostStatus|[nN]otFound|Busy|Owes)$`)
	found := map[string]string{}
	eachFile(t, func(path string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				return true
			}
			for _, s := range d.Specs {
				s := s.(*ast.ValueSpec)
				for i, value := range s.Values {
					if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.INT && statuses.MatchString(s.Names[i].Name) {
						found[lit.Value] = path + ": " + s.Names[i].Name
					}
				}
			}
			return false
		})
	})
	for _, n := range []string{"3", "10", "74", "75", "99", "127", "251", "255"} {
		if found[n] == "" {
			t.Errorf("no constant of the exit status %s", n)
		}
	}
	for n, where := range found {
		if !regexp.MustCompile(`(^|[^0-9])` + n + `([^0-9]|$)`).Match(page.text) {
			t.Errorf("%s does not mention the exit status %s (%s)", page.name, n, where)
		}
	}
}
