package checktest

import (
	"fmt"
	"go/doc/comment"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// The installed program has no source text: `nhc-gpu explain` and the manual pages read the
// comments of the checks, and the messages of their tests, from checks/explain/reference.

// referencePath returns the file that describes the checks of a package.
func referencePath(t *testing.T, own []string) string {
	t.Helper()
	return FromRoot(t, "checks/explain/reference/"+path.Base(typeOf(own[0]).PkgPath())+".toml")
}

func checkReference(t *testing.T, own []string) {
	file := referencePath(t, own)
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(referencePage(t, own), string(got)); diff != "" {
		t.Errorf("%s differs from the checks; %s writes it (-want +got):\n%s", file, docsWrite, diff)
	}
}

func writeReference(t *testing.T, own []string) {
	t.Helper()
	if err := os.WriteFile(referencePath(t, own), []byte(referencePage(t, own)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func referencePage(t *testing.T, own []string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Generated from the comments and the tests of the checks: " + docsWrite + "\n")
	for _, names := range families(own) {
		info, _ := checks.Lookup(names[0])
		kind := typeOf(names[0])
		about, examples := describe(kind.Name(), docsOf(t, kind).doc)
		fmt.Fprintf(&b, "\n[[check]]\nnames = %s\nabout = '''\n%s'''\nexamples = %s\n", inline(t, names), about, inline(t, examples))
		writeArguments(t, &b, names[0], reflect.ValueOf(info.New()).Elem())
		for _, f := range messagesOf(names) {
			if !info.Bears(f.Code) {
				continue // of a device that another check judges
			}
			fmt.Fprintf(&b, "\n[[check.finding]]\ncode = %q\nseverity = %q\n", f.Code, severitiesOf(names, f.Code))
			if remedy := checks.RemedyOf(f); remedy != checks.NoRemedy {
				fmt.Fprintf(&b, "remedy = %q\n", remedy)
			}
			fmt.Fprintf(&b, "message = %s\n", inline(t, strings.ReplaceAll(f.Message, "{root}", "")))
		}
	}
	return strings.ReplaceAll(b.String(), TestDevice(), "0xfe00") // a device of this machine
}

// describe splits a doc comment into its text, wrapped, and the lines of nhc.conf in it.
func describe(kind, doc string) (about string, examples []string) {
	doc = strings.TrimPrefix(doc, kind+" ")
	if doc != "" {
		doc = strings.ToUpper(doc[:1]) + doc[1:]
	}
	d := new(comment.Parser).Parse(doc)
	d.Content = slices.DeleteFunc(d.Content, func(b comment.Block) bool {
		code, ok := b.(*comment.Code)
		if !ok || !strings.Contains(code.Text, "||") {
			return false
		}
		examples = append(examples, strings.Split(strings.TrimSpace(code.Text), "\n")...)
		return true
	})
	return string((&comment.Printer{TextWidth: 76}).Text(d)), examples
}

// writeArguments describes the fields that arguments fill, those of embedded structs too.
func writeArguments(t *testing.T, b *strings.Builder, check string, v reflect.Value) {
	t.Helper()
	docs := docsOf(t, v.Type())
	info, _ := checks.Lookup(check)
	usage := info.Usage
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			writeArguments(t, b, check, v.Field(i))
			continue
		}
		word := argumentWord(f, usage)
		if word == "" {
			continue
		}
		fmt.Fprintf(b, "\n[[check.argument]]\nword = %q\nabout = %s\n", word, inline(t, docs.fields[f.Name]))
		value, _ := defaultOf(t, check, v, i, docs.fields[f.Name])
		for _, pair := range [][2]string{{"key", f.Tag.Get("toml")}, {"unit", unitOf(f.Type, docs.fields[f.Name])}, {"default", strings.Trim(value, "`")}} {
			if pair[1] != "" && pair[1] != "none" && pair[1] != "off" && pair[1] != "flag" {
				fmt.Fprintf(b, "%s = %s\n", pair[0], inline(t, pair[1]))
			}
		}
	}
}

// argumentWord returns the word for a field in a line of nhc.conf, "" if there is none. The
// usage of the check names the value of an option.
func argumentWord(f reflect.StructField, usage string) string {
	opt, long, arg, key := f.Tag.Get("opt"), f.Tag.Get("long"), f.Tag.Get("arg"), f.Tag.Get("toml")
	if opt == "" && long == "" {
		if key == "" && (arg == "" || arg == "*") {
			return ""
		}
		return strings.ToUpper(f.Name)
	}
	word := "-" + opt
	if opt == "" {
		word = "--" + long
	}
	if f.Type.Kind() == reflect.Bool {
		return word
	}
	if _, value, ok := strings.Cut(usage, word+" "); ok && value[0] != '[' && value[0] != '-' {
		return word + " " + value[:strings.IndexAny(value+" ", " ]|")]
	}
	return word + " " + strings.ToUpper(f.Name)
}
