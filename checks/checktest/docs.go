package checktest

import (
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
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

const (
	docsPath  = "docs/checks.md"
	docsWrite = "NHC_GPU_WRITE=docs go test ./checks/... -run 'TestFamily|TestDocs'"
)

const docsHead = `# The checks

Generated from the checks themselves and from their tests: ` + docsWrite + `

A line of nhc.conf is TARGET || CHECK. A check that fails takes the node out of service and logs the message shown here
([slurm.md](slurm.md#the-reason) has the reason that Slurm shows); the messages below are those of the tests. What a check could not tell (Unknown) is logged and drains nobody.

- MATCH is a match string: a glob, /regular expression/ or {node[01-16]}; a ! before it negates.
- A size is a number of kB, or has a unit of base 1024: 512M, 1.5GB, 2t. A count has one of base 1000: 50k, 2M.
- A word that is no number fails the check with "Invalid ...", an option that a check does not know with "Invalid option".
- Options with an action (kill, restart, remount, a shell line) are carried out only when every line before has passed.
- The name in brackets behind an option is its key in a table of nhc.toml: [jobs.md](jobs.md).

To see what a line comes to on this node without changing anything: nhc-gpu plan. To run it once: nhc-gpu -e 'CHECK'.
`

// A page is its head, with the index, and a section for each struct of checks: the names of
// those checks and what the struct and its scenarios say.
type docsPage struct {
	head     string
	sections []string
}

const sectionMark = "\n## "

func readPage(t *testing.T) (p docsPage) {
	t.Helper()
	text, err := os.ReadFile(FromRoot(t, docsPath))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), sectionMark)
	for _, section := range parts[1:] {
		p.sections = append(p.sections, sectionMark+section)
	}
	p.head = parts[0]
	return p
}

// namesOf are the checks that a section is about.
func namesOf(section string) []string {
	title, _, _ := strings.Cut(strings.TrimPrefix(section, sectionMark), "\n")
	return strings.Split(title, ", ")
}

// isAbout says whether a section is about one of some checks.
func isAbout(section string, names []string) bool {
	return slices.ContainsFunc(namesOf(section), func(name string) bool { return slices.Contains(names, name) })
}

// changePage changes docs/checks.md, which the tests of several packages do at a time.
func changePage(t *testing.T, change func(p *docsPage)) {
	t.Helper()
	path := FromRoot(t, docsPath)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	p := readPage(t)
	change(&p)
	slices.SortFunc(p.sections, func(a, b string) int { return strings.Compare(namesOf(a)[0], namesOf(b)[0]) })
	if err := os.WriteFile(path, []byte(p.head+strings.Join(p.sections, "")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sectionsOf are the sections of the checks of the package under test.
func sectionsOf(t *testing.T, own []string) (sections []string) {
	t.Helper()
	types := parseTypes(t)
	for _, names := range families(own) {
		var section strings.Builder
		writeFamily(t, &section, types, names)
		sections = append(sections, strings.ReplaceAll(section.String(), TestDevice(), "0xfe00")) // which is this machine's
	}
	return sections
}

// checkSections compares the sections of docs/checks.md with what the checks and their
// scenarios say.
func checkSections(t *testing.T, own []string) {
	got := slices.DeleteFunc(readPage(t).sections, func(s string) bool { return !isAbout(s, own) })
	if diff := cmp.Diff(strings.Join(sectionsOf(t, own), ""), strings.Join(got, "")); diff != "" {
		t.Errorf("%s is not what the checks say; %s writes it (-want +got):\n%s", docsPath, docsWrite, diff)
	}
}

func writeSections(t *testing.T, own []string) {
	t.Helper()
	want := sectionsOf(t, own)
	changePage(t, func(p *docsPage) {
		p.sections = append(slices.DeleteFunc(p.sections, func(s string) bool { return isAbout(s, own) }), want...)
	})
}

// CheckPage compares the head of docs/checks.md, and which sections it has, with the
// registry, and writes the head if it is asked to.
func CheckPage(t *testing.T) {
	t.Helper()
	var head strings.Builder
	head.WriteString(docsHead)
	writeIndex(&head)
	if os.Getenv(WriteSetting) == "docs" {
		changePage(t, func(p *docsPage) {
			p.head = head.String()
			p.sections = slices.DeleteFunc(p.sections, func(s string) bool { return !isAbout(s, checks.Names()) })
		})
		return
	}
	page := readPage(t)
	if diff := cmp.Diff(head.String(), page.head); diff != "" {
		t.Errorf("%s is not what the checks say; %s writes it (-want +got):\n%s", docsPath, docsWrite, diff)
	}
	var got [][]string
	for _, s := range page.sections {
		got = append(got, namesOf(s))
	}
	if diff := cmp.Diff(families(checks.Names()), got); diff != "" {
		t.Errorf("sections of %s; %s writes them (-want +got):\n%s", docsPath, docsWrite, diff)
	}
}

// writeIndex lists every check by its name, with a link to its section.
func writeIndex(page *strings.Builder) {
	page.WriteString("\n| check | |\n|---|---|\n")
	section := map[string]string{}
	for _, names := range families(checks.Names()) {
		for _, name := range names {
			section[name] = strings.NewReplacer(" ", "-", ",", "").Replace(strings.Join(names, ", "))
		}
	}
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		fmt.Fprintf(page, "| [%s](#%s) | %s |\n", name, section[name], cell(info.Summary))
	}
}

// families are those of some checks that one struct stands for, in order.
func families(all []string) (list [][]string) {
	at := map[string]int{}
	for _, name := range all {
		info, _ := checks.Lookup(name)
		kind := fmt.Sprintf("%v %v %s %v", typeOf(name).PkgPath(), typeOf(name), info.Usage, slices.Sorted(maps.Keys(info.Advice())))
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
	info, _ := checks.Lookup(names[0])
	kind := typeOf(names[0])
	docs, ok := types[kind.Name()]
	if !ok || docs.doc == "" {
		t.Errorf("%s: %s has no doc comment", names[0], kind)
	}
	fmt.Fprintf(page, "\n## %s\n\n", strings.Join(names, ", "))
	if len(names) > 1 {
		for _, name := range names {
			i, _ := checks.Lookup(name)
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
			for _, f := range s.Want {
				if checks.SharedAdvice()[f.Code] != "" || shown[f.Code] || f.Message == "" {
					continue
				}
				shown[f.Code] = true
				note := ""
				if f.Severity != checks.Fail {
					note = " (" + f.Severity.String() + ")"
				}
				fmt.Fprintf(page, "%s| %s%s | %s |\n", head, code(strings.ReplaceAll(f.Message, "{root}", "")), note, cell(checks.WhatToDo(f.Code)))
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
