// Package docs tests what the documents show: links, commands, examples and messages.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "gcc")) }

const root = "../.."

// page is a Markdown file of the project.
type page struct {
	name string // from the root of the project
	text []byte
	tree ast.Node
	ids  anchors
}

// anchors are the names of headings, as GitHub makes them.
type anchors map[string]bool

var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// Generate implements [parser.IDs].
func (a anchors) Generate(heading []byte, _ ast.NodeKind) []byte {
	id := strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(string(heading)), ""), " ", "-")
	for again, n := id, 1; a[id]; n++ {
		id = fmt.Sprintf("%s-%d", again, n)
	}
	a[id] = true
	return []byte(id)
}

// Put implements [parser.IDs].
func (a anchors) Put(id []byte) { a[string(id)] = true }

// readPages parses all documents for users and maintainers.
func readPages(t *testing.T) map[string]*page {
	t.Helper()
	names, err := filepath.Glob(root + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(root+"/docs", func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	pages := map[string]*page{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		p := &page{name: rel, text: data, ids: anchors{}}
		p.tree = markdown.Parser().Parse(text.NewReader(data), parser.WithContext(parser.NewContext(parser.WithIDs(p.ids))))
		pages[rel] = p
	}
	if len(pages) < 30 {
		t.Fatalf("only %d pages", len(pages))
	}
	return pages
}

func (p *page) each(visit func(ast.Node)) {
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			visit(n)
		}
		return ast.WalkContinue, nil
	})
}

// blocks returns the code blocks of a page.
func (p *page) blocks() (list []string) {
	p.each(func(n ast.Node) {
		if n.Kind() == ast.KindCodeBlock || n.Kind() == ast.KindFencedCodeBlock {
			list = append(list, string(n.Lines().Value(p.text)))
		}
	})
	return list
}

// spans returns the texts between backticks.
func (p *page) spans() (list []string) {
	p.each(func(n ast.Node) {
		if n.Kind() == ast.KindCodeSpan {
			var b strings.Builder
			for c := n.FirstChild(); c != nil; c = c.NextSibling() {
				if s, ok := c.(*ast.Text); ok {
					b.Write(s.Segment.Value(p.text))
				}
			}
			list = append(list, b.String())
		}
	})
	return list
}

// Every link leads to a file that there is, and to a heading of it. Every page of docs can be
// reached from docs/README.md.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages := readPages(t)
	links := map[string][]string{}
	for name, p := range pages {
		p.each(func(n ast.Node) {
			l, ok := n.(*ast.Link)
			if !ok || regexp.MustCompile(`^[a-z]+:`).Match(l.Destination) {
				return
			}
			file, anchor, _ := strings.Cut(string(l.Destination), "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: link to %s: %v", name, l.Destination, err)
				return
			}
			links[name] = append(links[name], target)
			if to := pages[target]; anchor != "" && (to == nil || !to.ids[anchor]) {
				t.Errorf("%s: link to %s: no such heading", name, l.Destination)
			}
		})
	}
	reached := map[string]bool{}
	todo := []string{"docs/README.md"}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if !reached[name] {
			reached[name] = true
			todo = append(todo, links[name]...)
		}
	}
	for name := range pages {
		if strings.HasPrefix(name, "docs/") && !reached[name] {
			t.Errorf("%s cannot be reached from docs/README.md", name)
		}
	}
}

const maxColumns = 100

var escape = regexp.MustCompile(`\\[[:punct:]]`)

// Lines of text have at most 100 columns, and no escapes.
func TestLines(t *testing.T) {
	t.Parallel()
	for name, p := range readPages(t) {
		p.each(func(n ast.Node) {
			if n.Kind() != ast.KindParagraph && n.Kind() != ast.KindTextBlock {
				return
			}
			for i := range n.Lines().Len() {
				line := n.Lines().At(i)
				at := strings.LastIndexByte(string(p.text[:line.Start]), '\n') + 1
				s := strings.TrimRight(string(p.text[at:line.Stop]), "\n")
				words := regexp.MustCompile("`[^`]*`").ReplaceAllString(strings.TrimSpace(s), "`")
				if utf8.RuneCountInString(s) > maxColumns && strings.Contains(words, " ") {
					t.Errorf("%s: %d columns, want at most %d: %s", name, utf8.RuneCountInString(s), maxColumns, s)
				}
				if escape.MatchString(words) {
					t.Errorf("%s: an escape that a reader sees: %s", name, s)
				}
			}
		})
	}
}

var (
	ofOthers = regexp.MustCompile(`^(slurmd|srun|job|reason): |^(Prolog error|CUDA_ERROR|launch_failed|reason)`)
	variable = regexp.MustCompile(`\.\.\.|  |\(pid|[0-9.]+s?|["'%]|\b(observe|gpu01|cu[A-Z]\w+|nvml[A-Z]\w+|FILE|LINE|DIR|REASON|SCRIPT|ADDRESS|gpu|mlx|eth|bond|process|uid|user|User|slot|NODE|nhc|U|F|N|X|Y|R|K|D)\b|/\S+`)
)

// Every message of the table in docs/troubleshooting.md is one of the program's: its longest
// part without variables is in a source, or in a scenario of the self-test.
func TestMessages(t *testing.T) {
	t.Parallel()
	var sources strings.Builder
	for _, dir := range []string{"checks", "cmd", "conf", "slurm"} {
		if err := filepath.WalkDir(filepath.Join(root, dir), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".toml", ".sh", ""}, filepath.Ext(name)) {
				return err
			}
			data, err := os.ReadFile(name)
			sources.Write(data)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	all := sources.String()
	p := readPages(t)["docs/troubleshooting.md"]
	count := 0
	for line := range strings.Lines(string(p.text)) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 3 {
			continue
		}
		for i, shown := range strings.Split(cells[0], "`") {
			if i%2 == 0 || ofOthers.MatchString(shown) || ofOthers.MatchString(strings.TrimPrefix(cells[0], "| ")) {
				continue
			}
			longest := ""
			for _, part := range variable.Split(shown, -1) {
				if part = strings.Trim(part, " :,;()"); len(part) > len(longest) {
					longest = part
				}
			}
			count++
			if !strings.Contains(all, longest) {
				t.Errorf("no message of the program has %q: %s", longest, shown)
			}
		}
	}
	if count < 100 {
		t.Errorf("only %d messages", count)
	}
}
