// Package words looks for words that make a reader stop, in everything that people read.
package words

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// word is a row of words.toml.
type word struct {
	Find   string
	Say    string
	In     string
	Except []string
	Files  []string

	find   *regexp.Regexp
	except []*regexp.Regexp
	files  []*regexp.Regexp
}

// passage is a piece of text that people read.
type passage struct {
	file string
	line int
	text string
	seen bool // a user can see it while the program runs
}

func TestWords(t *testing.T) {
	t.Parallel()
	words, err := readWords("words.toml")
	if err != nil {
		t.Fatal(err)
	}
	passages, err := readPassages("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(passages) < 10000 {
		t.Errorf("only %d passages were found: where are the files?", len(passages))
	}
	finds := make([]string, 0, len(words))
	for _, w := range words {
		finds = append(finds, w.Find)
	}
	anyWord := regexp.MustCompile(strings.Join(finds, "|")) // one pass for nearly all passages
	for _, p := range passages {
		if !anyWord.MatchString(strings.ToLower(p.text)) {
			continue
		}
		for _, w := range words {
			for _, hit := range w.matches(p) {
				t.Errorf("%s:%d: %q; write: %s", p.file, p.line, hit, w.Say)
			}
		}
	}
}

// A word is found wherever it stands, and where it is meant it is not.
func TestWordsFind(t *testing.T) {
	t.Parallel()
	words, err := readWords("words.toml")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		"the GPU is ill":                      1,
		"Tell what is made of it":             2,
		"runs as the user nobody":             0,
		"nobody reads this":                   1,
		"there is no such file":               0,
		"the GPU that failed has a serial":    0,
		"what is it?":                         0,
		"It mends whoever is left out by it.": 3,
	} {
		got := 0
		for _, w := range words {
			got += len(w.matches(passage{file: "x.md", text: text}))
		}
		if got != want {
			t.Errorf("%q: %d matches, want %d", text, got, want)
		}
	}
	go2 := "package p\n\n// a is ill\nvar a = \"the lane is sick\" // mend it\n"
	var got []string
	for _, p := range goPassages("p.go", []byte(go2)) {
		for _, w := range words {
			for _, m := range w.matches(p) {
				got = append(got, fmt.Sprint(p.line, " ", m))
			}
		}
	}
	slices.Sort(got)
	if want := []string{"3 ill", "4 lane", "4 mend", "4 sick"}; !slices.Equal(got, want) {
		t.Errorf("in Go: %q, want %q", got, want)
	}
}

func readWords(path string) ([]*word, error) {
	var table struct{ Word []*word }
	if meta, err := toml.DecodeFile(path, &table); err != nil {
		return nil, err
	} else if keys := meta.Undecoded(); len(keys) > 0 {
		return nil, fmt.Errorf("%s: %v", path, keys)
	}
	for _, w := range table.Word {
		w.find = regexp.MustCompile("(?i)" + w.Find)
		for _, e := range w.Except {
			w.except = append(w.except, regexp.MustCompile("(?i)"+e))
		}
		for _, f := range w.Files {
			w.files = append(w.files, regexp.MustCompile("^(?:"+f+")$"))
		}
	}
	return table.Word, nil
}

// matches returns the parts of a passage that have the word where it is not meant.
func (w *word) matches(p passage) (hits []string) {
	if w.In == "texts" && !p.seen || slices.ContainsFunc(w.files, func(re *regexp.Regexp) bool { return re.MatchString(p.file) }) {
		return nil
	}
	var meant [][]int
	for _, re := range w.except {
		meant = append(meant, re.FindAllStringIndex(p.text, -1)...)
	}
	for _, at := range w.find.FindAllStringIndex(p.text, -1) {
		if !slices.ContainsFunc(meant, func(m []int) bool { return m[0] < at[1] && at[0] < m[1] }) {
			hits = append(hits, p.text[at[0]:at[1]])
		}
	}
	return hits
}

// unread are directories without a text of ours: recorded behaviour, other people's output.
var unread = []string{".git", "testdata", "tests/words", "tests/lbnl/cases", "LICENSE"}

func readPassages(root string) (all []passage, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if slices.Contains(unread, name) || slices.Contains(unread, d.Name()) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		var read func(string, []byte) []passage
		switch filepath.Ext(name) {
		case ".go":
			read = goPassages
		case ".md":
			read = markdownPassages
		case ".toml":
			read = tomlPassages
		case ".sh", ".c", ".h", ".conf", ".spec", ".service", ".timer", ".yml":
			read = scriptPassages
		default:
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		all = append(all, read(name, data)...)
		return nil
	})
	return all, err
}

// goPassages returns each comment line and each text of a Go file. The strings of a test are
// its data.
func goPassages(name string, data []byte) (all []passage) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, data, parser.ParseComments)
	if err != nil {
		return []passage{{file: name, line: 1, text: err.Error(), seen: true}}
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			for i, line := range strings.Split(c.Text, "\n") {
				all = append(all, passage{file: name, line: fset.Position(c.Pos()).Line + i, text: line})
			}
		}
	}
	if strings.HasSuffix(name, "_test.go") {
		return all
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, err := strconv.Unquote(lit.Value)
			if err != nil || !strings.Contains(text, " ") {
				return true
			}
			for i, line := range strings.Split(text, "\n") {
				all = append(all, passage{file: name, line: fset.Position(lit.Pos()).Line + i, text: line, seen: true})
			}
		}
		return true
	})
	return all
}

// markdownPassages returns the lines outside of examples.
func markdownPassages(name string, data []byte) (all []passage) {
	fenced := false
	for i, line := range lines(data) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if !fenced && !strings.HasPrefix(line, "    ") {
			all = append(all, passage{file: name, line: i + 1, text: line})
		}
	}
	return all
}

// tomlPassages returns every line: comments are documentation, and values are texts.
func tomlPassages(name string, data []byte) (all []passage) {
	for i, line := range lines(data) {
		all = append(all, passage{file: name, line: i + 1, text: line, seen: !strings.HasPrefix(line, "#")})
	}
	return all
}

// scriptPassages returns the lines with comments.
func scriptPassages(name string, data []byte) (all []passage) {
	for i, line := range lines(data) {
		if strings.ContainsAny(line, "#*/") {
			all = append(all, passage{file: name, line: i + 1, text: line})
		}
	}
	return all
}

func lines(data []byte) (all []string) {
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		all = append(all, s.Text())
	}
	return all
}
