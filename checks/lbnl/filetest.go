package lbnl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// fileTest checks files with the operators of the shell's test command. Every operator must be
// true for every file; with -! at least one operator must be false for a file. Operators and files
// can be in any order. The check expands the names of files once more like the shell: quotes, ~
// and variables, but no wildcards.
//
//	node* || check_file_test -d -w /tmp /var/tmp
type fileTest struct {
	Test   string   `toml:"test"`   // the letters of the operators, in the order of the tests
	Files  []string `toml:"files"`  // the files
	Negate bool     `toml:"negate"` // at least one operator must be false for a file
}

func init() {
	checks.Register(checks.Info{
		Name:     "check_file_test",
		Usage:    "[-!] {-a|-b|-c|-d|-e|-f|-g|-h|-k|-p|-r|-s|-t|-u|-w|-x|-O|-G|-L|-S|-N} ... FILE ...",
		Summary:  "files exist and are of the right kind",
		Lane:     checks.Local,
		New:      func() checks.Check { return &fileTest{} },
		BadUsage: badOperator,
		Do: func() map[string]string {
			return map[string]string{
				"file.test": "Check the file with ls -ld and stat: the message names the operator of test(1) and the status that it returned.",
			}
		},
	})
}

func badOperator(_ string, err *checks.UsageError) checks.Finding {
	if err.Kind != checks.BadOption {
		return checks.WrongOption("check_file_test", err)
	}
	return checks.Usage(fmt.Sprintf("check_file_test:  Syntax error:  Invalid/unsupported operator \"%s\".", err.Word), err.Want)
}

// Bind separates operators from files: an operator is a dash and one letter.
func (c *fileTest) Bind(args []string) error {
	for _, word := range args {
		switch {
		case word == "-!":
			c.Negate = true
		case len(word) == 2 && word[0] == '-' && strings.IndexByte(probe.FileTests, word[1]) >= 0:
			c.Test += word[1:]
		case strings.HasPrefix(word, "-"):
			return &checks.UsageError{Kind: checks.BadOption, Word: word, Want: "one letter of " + probe.FileTests}
		default:
			c.Files = append(c.Files, word)
		}
	}
	return nil
}

func (c *fileTest) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	if c.Test == "" || len(c.Files) == 0 {
		return []checks.Finding{checks.Usage("check_file_test:  Syntax error:  Missing parameters.", "")}
	}
	not := ""
	if c.Negate {
		not = "-! "
	}
	env.Fact("%s-%s %s", not, c.Test, strings.Join(c.Files, " "))
	var op byte
	var file string
	for _, op = range []byte(c.Test) {
		for _, file = range c.Files {
			status := c.test(ctx, env, op, file)
			switch {
			case status == 0:
			case c.Negate:
				return nil
			default:
				return []checks.Finding{c.finding(op, file, status)}
			}
		}
	}
	if c.Negate {
		return []checks.Finding{c.finding(op, file, 0)}
	}
	return nil
}

func (c *fileTest) finding(op byte, file string, status int) checks.Finding {
	f := checks.Finding{
		Code:     "file.test",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "file", Name: file},
		Message:  fmt.Sprintf("check_file_test:  -%c %s returned %d.", op, file, status),
		Want:     fmt.Sprintf("-%c", op),
		Got:      fmt.Sprintf("not -%c", op),
	}
	if c.Negate {
		f.Want, f.Got = f.Got, f.Want
	}
	return f
}

// test returns the exit status of "eval test -OP FILE".
func (c *fileTest) test(ctx context.Context, env *checks.Env, op byte, file string) int {
	words, ok := checks.ExpandWords(file, env.Lookup)
	switch {
	case !ok:
		return testInShell(ctx, env, op, file)
	case len(words) == 0:
		return 0 // test with one nonempty argument is true
	case len(words) > 1 && slices.ContainsFunc(words, isOperator):
		return testInShell(ctx, env, op, file)
	case len(words) > 1:
		return 2 // test fails with too many arguments
	}
	env.At("stat %s", words[0])
	path := words[0]
	if op != 't' {
		path = env.Abs(path)
	}
	if probe.TestFile(env.Host, op, path) {
		return 0
	}
	return 1
}

// isOperator reports whether test(1) can read the word as an operator between other words.
func isOperator(word string) bool {
	return strings.HasPrefix(word, "-") || slices.Contains([]string{"=", "==", "!=", "<", ">", "!", "(", ")"}, word)
}

// testInShell has bash run a test that [checks.ExpandWords] does not support.
func testInShell(ctx context.Context, env *checks.Env, op byte, file string) int {
	cmd := env.Shell(`set -f; eval test "$0" "$1"`, "-"+string(op), file)
	for name, value := range env.Vars {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	env.At("run test -%c %s", op, file)
	return env.Host.Run(ctx, cmd).Status
}
