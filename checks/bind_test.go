package checks

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestGetopts has the answers of bash's getopts with the spec ":0rf:".
func TestGetopts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, opts, rest, err string
	}{
		{},
		{args: "-0 -f x y", opts: "0 f=x", rest: "y"},
		{args: "-0rfx y -r", opts: "0 r f=x", rest: "y -r"},
		{args: "-rf -0 z", opts: "r f=-0", rest: "z"},
		{args: "-r -- -0", opts: "r", rest: "-0"},
		{args: "-r - -0", opts: "r", rest: "- -0"},
		{args: "-0qr x", opts: "0", rest: "x", err: "invalid option -q, want one of -0 -r -f"},
		{args: "-:", err: "invalid option -:, want one of -0 -r -f"},
		{args: "-r -f", opts: "r", err: "option -f requires an argument"},
	} {
		var opts []string
		rest, err := Getopts(":0rf:", strings.Fields(c.args), func(opt byte, arg string) {
			o := string(opt)
			if arg != "" {
				o += "=" + arg
			}
			opts = append(opts, o)
		})
		message := ""
		if err != nil {
			message = err.Error()
		}
		got := []string{strings.Join(opts, " "), strings.Join(rest, " "), message}
		if diff := cmp.Diff([]string{c.opts, c.rest, c.err}, got); diff != "" {
			t.Errorf("%q: options, rest, error (-want +got):\n%s", c.args, diff)
		}
	}
}

// sample is a check with one field of every kind.
type sample struct {
	List  []string      `opt:"l" toml:"list"`
	On    bool          `opt:"o" toml:"on"`
	Share float64       `opt:"s" toml:"share"`
	Wait  time.Duration `opt:"w" toml:"wait"`
	Count int           `arg:"1" toml:"count"`
	Text  string        `arg:"2" toml:"text"`
}

func (*sample) Run(context.Context, *Env) []Finding { return nil }

var fullSample = sample{List: []string{"a", "b"}, On: true, Share: 1.5, Wait: 2500 * time.Millisecond, Count: 7, Text: "seven"}

func TestBind(t *testing.T) {
	t.Parallel()
	var got sample
	if err := Bind(&got, strings.Fields("-l a -o -s 1.5 -w 2.5s -l b -- 7 seven")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullSample, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for args, want := range map[string]string{
		"eight":    `bad value "eight", want a whole number`,
		"-s x":     `bad value "x", want a number`,
		"-w -1":    `bad value "-1", want seconds, or 15m, 24h, 7d`,
		"1 2 3":    `unexpected argument "3", want at most 2`,
		"-x":       "invalid option -x, want one of -l -o -s -w",
		"-w x one": `bad value "x", want seconds, or 15m, 24h, 7d`,
	} {
		wantUsage(t, args, Bind(&sample{}, strings.Fields(args)), want)
	}
}

func TestBindTable(t *testing.T) {
	t.Parallel()
	var got sample
	err := BindTable(&got, map[string]any{"list": []any{"a", "b"}, "on": true, "share": 1.5, "wait": 2.5, "count": int64(7), "text": "seven"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullSample, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for want, table := range map[string]map[string]any{
		`unknown key "coutn", want count`:                                             {"coutn": 1},
		`bad value "count", want one value, not a list`:                               {"count": []any{1}},
		`bad value "text", want a string, a number, true or false, or a list of them`: {"text": map[string]any{}},
		`bad value "maybe", want true or false`:                                       {"on": "maybe"},
	} {
		wantUsage(t, table, BindTable(&sample{}, table), want)
	}
}

func wantUsage(t *testing.T, of any, err error, want string) {
	t.Helper()
	if _, ok := errors.AsType[*UsageError](err); !ok || err.Error() != want {
		t.Errorf("%v: %v, want %s", of, err, want)
	}
}

func TestMissingWord(t *testing.T) {
	t.Parallel()
	err := &UsageError{Kind: MissingWord, Want: "a name"}
	wantUsage(t, "no words", err, "missing argument, want a name")
	if f := WrongOption("check_x", err); f.Message != "check_x:  Syntax error:  missing argument, want a name" {
		t.Errorf("got %q", f.Message)
	}
}

// A long option can be anywhere before "--". Its value follows it, or is joined to it by "=".
func TestBindLongOptions(t *testing.T) {
	t.Parallel()
	type common struct {
		MaxAge time.Duration `long:"max-age"`
	}
	type long struct {
		common

		Size  Size   `opt:"b"`
		Quiet bool   `long:"no-p2p"`
		Algo  string `long:"algo"`
		Op    string `arg:"1"`
	}
	want := long{common: common{MaxAge: 36 * time.Hour}, Size: 8 << 30, Quiet: true, Algo: "ring", Op: "all_reduce"}
	for _, words := range []string{
		"--max-age 1.5d --algo=ring --no-p2p -b 8G all_reduce", "all_reduce --no-p2p --algo ring --max-age=36h -b8G", "-b 8GiB --no-p2p --max-age 129600 --algo ring -- all_reduce",
	} {
		var got long
		err := BindTags(&got, strings.Fields(words))
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", words, got, err)
		}
	}
	const options = "one of -b --algo --max-age --no-p2p"
	for words, want := range map[string]string{
		"--alg ring":    "invalid option --alg, want " + options,
		"-x":            "invalid option -x, want " + options,
		"--algo":        "option --algo requires an argument",
		"--max-age x":   `bad value "x", want seconds, or 15m, 24h, 7d`,
		"-b 12Q":        `bad value "12Q", want a size: 512M, 16G`,
		"--no-p2p=junk": `bad value "junk", want true or false`,
	} {
		if err := BindTags(&long{}, strings.Fields(words)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", words, err, want)
		}
	}
}
