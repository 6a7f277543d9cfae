package checks

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var writeDocs = flag.Bool("docs", false, "rewrite docs/checks.md")

const docsPath = "../docs/checks.md"

const docsHead = `# The checks

Generated from the checks themselves and from their tests: go test ./checks -run Docs -docs

A line of nhc.conf is TARGET || CHECK. A check that fails takes the node out of service and logs the message shown here
([slurm.md](slurm.md#the-reason) has the reason that Slurm shows); the messages below are those of the tests. What a check could not tell (Unknown) is logged and drains nobody.

- MATCH is a match string: a glob, /regular expression/ or {node[01-16]}; a ! before it negates.
- A size is a number of kB, or has a unit of base 1024: 512M, 1.5GB, 2t. A count has one of base 1000: 50k, 2M.
- A word that is no number fails the check with "Invalid ...", an option that a check does not know with "Invalid option".
- Options with an action (kill, restart, remount, a shell line) are carried out only when every line before has passed.
- The name in brackets behind an option is its key in a table of nhc.toml: [jobs.md](jobs.md).

To see what a line comes to on this node without changing anything: nhc-gpu plan. To run it once: nhc-gpu -e 'CHECK'.
`

// TestDocs compares docs/checks.md with what the registry and the tests say.
func TestDocs(t *testing.T) {
	t.Parallel()
	want := strings.ReplaceAll(checksPage(t), testDevice(), "0xfe00") // which is this machine's
	if *writeDocs {
		if err := os.WriteFile(docsPath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/checks.md is not what the checks say; go test ./checks -run Docs -docs writes it (-want +got):\n%s", diff)
	}
}

func checksPage(t *testing.T) string {
	t.Helper()
	types := parseTypes(t)
	var page strings.Builder
	page.WriteString(docsHead)
	writeIndex(&page)
	for _, names := range families() {
		writeFamily(t, &page, types, names)
	}
	return page.String()
}

// writeIndex lists every check by its name, with a link to its section.
func writeIndex(page *strings.Builder) {
	page.WriteString("\n| check | |\n|---|---|\n")
	section := map[string]string{}
	for _, names := range families() {
		for _, name := range names {
			section[name] = strings.NewReplacer(" ", "-", ",", "").Replace(strings.Join(names, ", "))
		}
	}
	for _, name := range Names() {
		info, _ := Lookup(name)
		fmt.Fprintf(page, "| [%s](#%s) | %s |\n", name, section[name], cell(info.Summary))
	}
}

// families are the names of checks that one struct stands for, in order.
func families() (list [][]string) {
	at := map[string]int{}
	for _, name := range Names() {
		info, _ := Lookup(name)
		kind := fmt.Sprintf("%T %s %v", info.New(), info.Usage, slices.Sorted(maps.Keys(info.Do)))
		if i, ok := at[kind]; ok {
			list[i] = append(list[i], name)
			continue
		}
		at[kind] = len(list)
		list = append(list, []string{name})
	}
	return list
}

// typeDocs are the comments of one struct.
type typeDocs struct {
	doc    string
	fields map[string]string
}

func parseTypes(t *testing.T) map[string]typeDocs {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]typeDocs{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				spec := s.(*ast.TypeSpec)
				if st, ok := spec.Type.(*ast.StructType); ok {
					doc := g.Doc.Text()
					if spec.Doc != nil {
						doc = spec.Doc.Text()
					}
					types[spec.Name.Name] = typeDocs{doc, fieldDocs(st)}
				}
			}
		}
	}
	return types
}

func fieldDocs(st *ast.StructType) map[string]string {
	fields := map[string]string{}
	for _, f := range st.Fields.List {
		text := strings.Join(strings.Fields(f.Comment.Text()+" "+f.Doc.Text()), " ")
		for _, n := range f.Names {
			fields[n.Name] = text
		}
	}
	return fields
}

func writeFamily(t *testing.T, page *strings.Builder, types map[string]typeDocs, names []string) {
	t.Helper()
	info, _ := Lookup(names[0])
	kind := reflect.TypeOf(info.New()).Elem()
	docs, ok := types[kind.Name()]
	if !ok || docs.doc == "" {
		t.Errorf("%s: %s has no doc comment", names[0], kind)
	}
	fmt.Fprintf(page, "\n## %s\n\n", strings.Join(names, ", "))
	if len(names) > 1 {
		for _, name := range names {
			i, _ := Lookup(name)
			fmt.Fprintf(page, "- `%s`: %s\n", name, i.Summary)
		}
		page.WriteString("\n")
	}
	fmt.Fprintf(page, "    %s\n\n%s", strings.TrimSpace(names[0]+" "+info.Usage), prose(kind.Name(), docs.doc))
	writeOptions(t, page, names[0], reflect.ValueOf(info.New()).Elem(), docs)
	if len(info.Vars) > 0 {
		page.WriteString("\n| variable | default |\n|---|---|\n")
		for _, v := range slices.Sorted(maps.Keys(info.Vars)) {
			fmt.Fprintf(page, "| `%s` | %s |\n", v, code(info.Vars[v]))
		}
	}
	writeMessages(page, names)
}

// prose is a doc comment as Markdown. The name of the struct is nobody's business.
func prose(name, doc string) string {
	doc = strings.TrimPrefix(doc, name+" ")
	if doc != "" {
		doc = strings.ToUpper(doc[:1]) + doc[1:]
	}
	var p comment.Parser
	var pr comment.Printer
	return string(pr.Markdown(p.Parse(doc)))
}

func writeOptions(t *testing.T, page *strings.Builder, check string, v reflect.Value, docs typeDocs) {
	t.Helper()
	head := "\n| word | | default |\n|---|---|---|\n"
	for i := range v.NumField() {
		f := v.Type().Field(i)
		opt, arg, key := f.Tag.Get("opt"), f.Tag.Get("arg"), f.Tag.Get("toml")
		if opt == "" && arg == "" && key == "" || arg == "*" && key == "" {
			continue
		}
		word := strings.ToUpper(f.Name)
		if opt != "" {
			word = "-" + opt
		}
		if key != "" {
			word += " (" + key + ")"
		}
		meaning := docs.fields[f.Name]
		if meaning == "" {
			t.Errorf("%s: field %s has no comment: it is the documentation of that word", check, f.Name)
		}
		fmt.Fprintf(page, "%s| `%s` | %s | %s |\n", head, word, cell(meaning), defaultOf(v.Field(i)))
		head = ""
	}
}

func defaultOf(v reflect.Value) string {
	if v.IsZero() {
		return ""
	}
	return code(fmt.Sprint(v.Interface()))
}

// writeMessages shows a message of each kind, as the tests of the check have it.
func writeMessages(page *strings.Builder, names []string) {
	head := "\n| it says | what to do |\n|---|---|\n"
	shown := map[string]bool{}
	for _, name := range names {
		for _, s := range scenariosOf(name) {
			for _, f := range s.want {
				if sharedCodes[f.Code] || shown[f.Code] || f.Message == "" {
					continue
				}
				shown[f.Code] = true
				note := ""
				if f.Severity != Fail {
					note = " (" + f.Severity.String() + ")"
				}
				fmt.Fprintf(page, "%s| %s%s | %s |\n", head, code(strings.ReplaceAll(f.Message, "{root}", "")), note, cell(WhatToDo(f.Code)))
				head = ""
			}
		}
	}
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(cell(s), "`", "'") + "`"
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}
