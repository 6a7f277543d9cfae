package conf

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// known are the variables of the tests.
var known = map[string]string{"HOST": "node01", "X": "1; touch t", "EMPTY": "", "TWO": "a b", "DIR": "/var/log"}

func knownValue(name string) string { return known[name] }

func knownLookup(name string) (string, bool) {
	v, ok := known[name]
	return v, ok
}

// assignment is the result of ParseAssign.
type assignment struct {
	Name, Value     string
	Array           []string
	IsArray, Export bool
}

func TestParseAssign(t *testing.T) {
	t.Parallel()
	scalar := func(name, value string) assignment { return assignment{Name: name, Value: value} }
	array := func(name string, words ...string) assignment { return assignment{name, "", words, true, false} }
	tests := []struct {
		word string
		want assignment
	}{
		{"A=1", scalar("A", "1")},
		{"_a9=", scalar("_a9", "")},
		{"A=b=c", scalar("A", "b=c")},
		{"export A=1", assignment{"A", "1", nil, false, true}},
		{"export \t A=1 2", assignment{"A", "1 2", nil, false, true}},
		{"export=1", scalar("export", "1")},
		{"FOO=bar echo baz", scalar("FOO", "bar echo baz")},
		{"A= b ", scalar("A", " b ")},

		{"LOGFILE='>/x 2>&1'", scalar("LOGFILE", ">/x 2>&1")},
		{`A="b c"d'e'`, scalar("A", "b cde")},
		{`A="it's" 'a "b"'`, scalar("A", `it's a "b"`)},
		{`A=it's`, scalar("A", `it's`)},
		{`A="b`, scalar("A", `"b`)},
		{`A=''`, scalar("A", "")},
		{`A=a\b\ c`, scalar("A", `a\b\ c`)},

		{"A=$(touch t)", scalar("A", "$(touch t)")},
		{"A=`touch t`", scalar("A", "`touch t`")},
		{"A=1; touch t", scalar("A", "1; touch t")},
		{"A=a|b&c>d <e *", scalar("A", "a|b&c>d <e *")},
		{"A=a $HOST ${X}", scalar("A", "a node01 1; touch t")},
		{`A="$HOST"'$HOST'$HOST`, scalar("A", "node01$HOSTnode01")},
		{"A=$HOSTS$EMPTY.${HOST}x", scalar("A", ".node01x")},
		{"A=$ $1 $$ ${HOST ${HOST:-a} ${}", scalar("A", "$ $1 $$ ${HOST ${HOST:-a} ${}")},
		{`A="$"$`, scalar("A", "$$")},

		{"A=()", array("A", []string{}...)},
		{"A=( '@@' '<>' )", array("A", "@@", "<>")},
		{"A=( '/m1 %h %m' \"/m2 $HOST\" c\td )", array("A", "/m1 %h %m", "/m2 node01", "c", "d")},
		{"A=(a'b c'd '' $EMPTY $TWO)", array("A", "ab cd", "", "a b")},
		{"A=(a", scalar("A", "(a")},
		{"A=( a ) b", scalar("A", "( a ) b")},
		{"export A=( a )", assignment{"A", "", []string{"a"}, true, true}},
	}
	for _, tt := range tests {
		t.Run(tt.word, func(t *testing.T) {
			t.Parallel()
			var got assignment
			var err error
			got.Name, got.Value, got.Array, got.IsArray, got.Export, err = ParseAssign(tt.word, knownValue)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.IsArray && got.Array == nil {
				t.Error("an array is nil")
			}
		})
	}
}

func TestParseAssignErrors(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"", "A", "=1", "1A=2", "A-B=1", " A=1", "A =1", "A+=1", "A[0]=1", "exit 5", "echo x; Z=9", "export", "export A", "export  =1", "exportA B=1", "-v", "Ä=1"} {
		if name, _, _, _, _, err := ParseAssign(word, knownValue); err == nil {
			t.Errorf("%q: got an assignment to %q, want an error", word, name)
		}
	}
	for word, want := range map[string]string{
		"exit 5":     `argument "exit 5": want NAME=value or export NAME=value`,
		"-v":         `argument "-v": options must precede the first NAME=value`,
		"o/nhc.conf": `argument "o/nhc.conf": want NAME=value; a file needs -c FILE, a directory -D DIR`,
		"plan":       `argument "plan": want NAME=value; a command must be the first argument`,
	} {
		if _, _, _, _, _, err := ParseAssign(word, knownValue); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
