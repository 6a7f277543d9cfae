package checktest

import (
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// sourceOfDefault names who says so, for defaults of our own checks that are not this project's
// own judgement.
var sourceOfDefault = map[string]string{
	"gpuRemap.Max":   "NVIDIA, DCGM and AzureHPC replace a GPU at 512 rows",
	"jobGPUs.Memory": "as check_gpu_procs",
	"dcgmDiag.Level": "DCGM's shortest level",
}

// typeDocs are the comments of one struct.
type typeDocs struct {
	doc    string
	fields map[string]string
}

// docsOf returns the comments of a struct of the module.
func docsOf(t *testing.T, kind reflect.Type) typeDocs {
	t.Helper()
	_, dir, ok := strings.Cut(kind.PkgPath(), "/nhc-gpu/nhc-gpu/")
	if !ok {
		t.Fatalf("%s is of another module", kind)
	}
	files, err := filepath.Glob(FromRoot(t, dir) + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
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
				st, ok := spec.Type.(*ast.StructType)
				if !ok || spec.Name.Name != kind.Name() {
					continue
				}
				doc := g.Doc.Text()
				if spec.Doc != nil {
					doc = spec.Doc.Text()
				}
				return typeDocs{doc, fieldDocs(st)}
			}
		}
	}
	t.Fatalf("%s: no struct %s in %v", dir, kind.Name(), files)
	return typeDocs{}
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

// sectionOf writes the section of checks that share a struct.
func sectionOf(t *testing.T, names []string) string {
	t.Helper()
	var page strings.Builder
	info, _ := checks.Lookup(names[0])
	kind := typeOf(names[0])
	docs := docsOf(t, kind)
	if docs.doc == "" {
		t.Errorf("%s: %s has no doc comment", names[0], kind)
	}
	fmt.Fprintf(&page, "\n## %s\n\n", strings.Join(names, ", "))
	if len(names) > 1 {
		for _, name := range names {
			i, _ := checks.Lookup(name)
			page.WriteString(wrap("- `"+name+"`: "+i.Summary, "  ") + "\n")
		}
		page.WriteString("\n")
	}
	fmt.Fprintf(&page, "```\n%s\n```\n\n", strings.TrimSpace(names[0]+" "+info.Usage))
	options := optionRows(t, names[0], reflect.ValueOf(info.New()).Elem())
	if other := describedBefore(names[0]); other != "" {
		fmt.Fprintf(&page, "[%s](%s) describes the check and its options.\n", other, linksTo()[other])
		options = nil
	} else {
		page.WriteString(prose(kind.Name(), docs.doc))
	}
	if len(options) > 0 {
		page.WriteString("\n| option | meaning | unit | default | source |\n|---|---|---|---|---|\n" + strings.Join(options, ""))
	}
	if len(info.Vars) > 0 {
		page.WriteString("\n| variable of nhc.conf | default |\n|---|---|\n")
		for _, v := range slices.Sorted(maps.Keys(info.Vars)) {
			value := code(info.Vars[v])
			if value == "" {
				value = "none"
			}
			fmt.Fprintf(&page, "| `%s` | %s |\n", v, value)
		}
	}
	writeMessages(&page, names)
	return page.String()
}

// describedBefore returns the first check of the same page that shares the struct of a check, and
// so its text, but not its section; "" if there is none.
func describedBefore(name string) string {
	for _, names := range families(checks.Names()) {
		switch {
		case slices.Contains(names, name):
			return ""
		case typeOf(names[0]) == typeOf(name) && groupOf(names) == groupOf([]string{name}):
			return names[0]
		}
	}
	return ""
}

// optionRows describes the fields that arguments or keys of nhc.toml fill.
func optionRows(t *testing.T, check string, v reflect.Value) (rows []string) {
	t.Helper()
	docs := docsOf(t, v.Type())
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			rows = append(rows, optionRows(t, check, v.Field(i))...)
			continue
		}
		opt, long, arg, key := f.Tag.Get("opt"), f.Tag.Get("long"), f.Tag.Get("arg"), f.Tag.Get("toml")
		var words []string
		if opt != "" {
			words = append(words, "`-"+opt+"`")
		}
		if long != "" {
			words = append(words, "`--"+long+"`")
		}
		if arg != "" {
			words = append(words, "`"+strings.ToUpper(f.Name)+"`")
		}
		if len(words) == 0 && key == "" || arg == "*" && key == "" {
			continue
		}
		option := strings.Join(words, ", ")
		if key != "" {
			option = strings.TrimSpace(option + " (`" + key + "`)")
		}
		meaning := docs.fields[f.Name]
		if meaning == "" {
			t.Errorf("%s: field %s has no comment: it is the documentation of that option", check, f.Name)
		}
		value, source := defaultOf(t, check, v, i, meaning)
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s |\n", option, cell(meaning), unitOf(f.Type, meaning), value, source))
	}
	return rows
}

// defaultOf returns the default of a field and who says so.
func defaultOf(t *testing.T, check string, v reflect.Value, i int, meaning string) (value, source string) {
	t.Helper()
	f := v.Field(i)
	switch {
	case f.IsZero() && f.Kind() == reflect.Bool:
		return "off", ""
	case f.IsZero() && strings.Contains(meaning, "platform"):
		return "the platform's", "[platforms](../platforms.md)"
	case f.IsZero() && strings.Contains(meaning, "0: "):
		return "`0`", ""
	case f.IsZero():
		return "none", ""
	case checks.OfLBNL(check):
		source = "LBNL NHC"
	default:
		source = sourceOfDefault[v.Type().Name()+"."+v.Type().Field(i).Name]
		if source == "" {
			source = "this project"
		}
	}
	if d, ok := reflect.TypeAssert[time.Duration](f); ok {
		return code(shortTime(d)), source
	}
	if f.Kind() == reflect.Bool {
		return "on", source
	}
	return code(fmt.Sprint(f.Interface())), source
}

// shortTime writes a time as nhc.conf has it.
func shortTime(d time.Duration) string {
	s := d.String()
	if d >= time.Minute {
		s = strings.TrimSuffix(strings.TrimSuffix(s, "0s"), "0m")
	}
	return s
}

// unitsInWords are units that the comment of a field names.
var unitsInWords = []struct {
	words *regexp.Regexp
	unit  string
}{
	{regexp.MustCompile(`\b(GB/s|MB/s|Gb/s|Mb/s|GT/s|MHz|MiB|TFLOP/s)\b`), "$1"},
	{regexp.MustCompile(`\b(an|per) hour\b`), "per hour"},
	{regexp.MustCompile(`\b(a|per) minute\b`), "per minute"},
	{regexp.MustCompile(`\bmicroseconds\b`), "us"},
	{regexp.MustCompile(`\b(HOURS|hours|how long errors count|how far back|how long warnings)\b`), "h"},
	{regexp.MustCompile(`\bseconds\b`), "s"},
	{regexp.MustCompile(`\b(per cent|percent)\b|%`), "%"},
	{regexp.MustCompile(`\bdegrees Celsius\b`), "degrees C"},
	{regexp.MustCompile(`\b[Ww]atts\b`), "W"},
	{regexp.MustCompile(`\bbytes\b`), "bytes"},
}

// unitOf returns the unit of an option: that of its type, or the one that its comment names.
func unitOf(kind reflect.Type, meaning string) string {
	many := ""
	if kind.Kind() == reflect.Slice {
		kind, many = kind.Elem(), ", repeatable"
	}
	switch name := kind.String(); {
	case kind.Kind() == reflect.Bool:
		return "flag"
	case name == "time.Duration":
		return "time" + many
	case name == "checks.Size", name == "checks.SizeKB":
		return "size" + many
	case name == "checks.Count":
		return "count" + many
	}
	for _, u := range unitsInWords {
		if m := u.words.FindString(meaning); m != "" {
			return u.words.ReplaceAllString(m, u.unit) + many
		}
	}
	switch {
	case strings.Contains(meaning, "match string"):
		return "match" + many
	case kind.Kind() == reflect.Int, kind.Kind() == reflect.Float64:
		return "number" + many
	}
	return "text" + many
}

// writeMessages shows a message of each kind, as the tests of the check have it.
func writeMessages(page *strings.Builder, names []string) {
	head := "\n| message | result | code | what to do |\n|---|---|---|---|\n"
	for _, f := range messagesOf(names) {
		fmt.Fprintf(page, "%s| %s | %s | `%s` | %s |\n", head, code(strings.ReplaceAll(f.Message, "{root}", "")), severitiesOf(names, f.Code), f.Code, cell(f.Advice()))
		head = ""
	}
}

// messagesOf returns one finding of each code that checks have in their tests.
func messagesOf(names []string) (list []checks.Finding) {
	shown := map[string]bool{}
	for _, name := range names {
		for _, s := range scenariosOf(name) {
			for _, f := range s.Want {
				if checks.SharedAdvice()[f.Code] == "" && !shown[f.Code] && f.Message != "" {
					shown[f.Code] = true
					list = append(list, f)
				}
			}
		}
	}
	return list
}

// severitiesOf returns the severities that a code has in the tests of checks: "warn or fail".
func severitiesOf(names []string, code string) string {
	var list []checks.Severity
	for _, name := range names {
		for _, s := range scenariosOf(name) {
			for _, f := range s.Want {
				if f.Code == code && f.Severity != checks.OK {
					list = append(list, f.Severity)
				}
			}
		}
	}
	slices.Sort(list)
	if len(list) == 0 {
		return checks.OK.String()
	}
	var texts []string
	for _, s := range slices.Compact(list) {
		texts = append(texts, s.String())
	}
	return strings.Join(texts, " or ")
}

const docsWidth = 100

// prose writes a doc comment as Markdown: lines of at most docsWidth columns, and no escapes.
// A paragraph begins without the name of the struct.
func prose(name, doc string) string {
	doc = strings.TrimPrefix(doc, name+" ")
	if doc != "" {
		doc = strings.ToUpper(doc[:1]) + doc[1:]
	}
	var p comment.Parser
	var blocks []string
	for _, block := range p.Parse(doc).Content {
		switch block := block.(type) {
		case *comment.Code:
			blocks = append(blocks, "```\n"+block.Text+"```\n")
		case *comment.Paragraph:
			blocks = append(blocks, wrap(quoteNames(plain(block.Text)), "")+"\n")
		case *comment.Heading:
			blocks = append(blocks, "### "+plain(block.Text)+"\n")
		case *comment.List:
			var items strings.Builder
			for _, item := range block.Items {
				mark := "- "
				if item.Number != "" {
					mark = item.Number + ". "
				}
				for _, b := range item.Content {
					if par, ok := b.(*comment.Paragraph); ok {
						items.WriteString(wrap(mark+quoteNames(plain(par.Text)), "  ") + "\n")
						mark = "  "
					}
				}
			}
			blocks = append(blocks, items.String())
		}
	}
	return strings.Join(blocks, "\n")
}

func plain(text []comment.Text) string {
	var b strings.Builder
	for _, t := range text {
		switch t := t.(type) {
		case comment.Plain:
			b.WriteString(string(t))
		case comment.Italic:
			b.WriteString(string(t))
		case *comment.Link:
			b.WriteString(plain(t.Text))
		case *comment.DocLink:
			b.WriteString(plain(t.Text))
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// names are what Markdown would take for its own marks, or a reader for a word: names with an
// underscore, options, wildcards.
var names = regexp.MustCompile("`[^`]*`" + `|'[^' ]*\\[^' ]*'|"[^" ]*[_*<>|][^" ]*"|[A-Za-z0-9/.$*=-]*[A-Za-z0-9*]_[A-Za-z0-9_/.*=-]*[A-Za-z0-9_/*]|(?:^|[ (])--?[A-Za-z0-9!][a-z0-9-]*|<[A-Za-z]+>|[A-Za-z0-9/.]*\*[A-Za-z0-9/.]*`)

// quoteNames puts such names into backticks.
func quoteNames(s string) string {
	return names.ReplaceAllStringFunc(s, func(name string) string {
		lead := ""
		if name[0] == ' ' || name[0] == '(' {
			lead, name = name[:1], name[1:]
		}
		if name[0] == '`' || name == "*" && lead == "" {
			return lead + name
		}
		end := ""
		if last := len(name) - 1; name[last] == '.' {
			name, end = name[:last], "."
		}
		return lead + "`" + name + "`" + end
	})
}

// wrap breaks a paragraph into lines of at most docsWidth columns; text between backticks
// stays together if it fits.
func wrap(text, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range words(text) {
		switch {
		case i == 0:
		case column+1+len(word) > docsWidth:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// words splits a paragraph at blanks that are not between backticks.
func words(text string) (list []string) {
	for w := range strings.FieldsSeq(text) {
		if n := len(list); n > 0 && strings.Count(list[n-1], "`")%2 == 1 {
			list[n-1] += " " + w
			continue
		}
		list = append(list, w)
	}
	return list
}
