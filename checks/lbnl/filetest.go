package lbnl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// fileTest checks files with the operators of the shell's test command: every
// one must hold for every file, or with -! one must not hold for some file.
// Operators and files may come in any order. Files are expanded once more as
// the shell does (quotes, ~ and variables, but no wildcards).
//
//	node* || check_file_test -d -w /tmp /var/tmp
type fileTest struct {
	Test   string   `toml:"test"`   // the letters of the operators, in order
	Files  []string `toml:"files"`  // the files
	Negate bool     `toml:"negate"` // one operator must not hold for some file
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
				"file.test": "Look at the file: test(1) with that operator gave the status that is named.",
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

// Bind tells operators from files: an operator is one letter behind a dash.
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

// test is the status of "eval test -OP FILE".
func (c *fileTest) test(ctx context.Context, env *checks.Env, op byte, file string) int {
	words, ok := checks.ExpandWords(file, env.Lookup)
	switch {
	case !ok:
		return shellTest(ctx, env, op, file)
	case len(words) == 0:
		return 0 // test with one word: it is not empty, hence true
	case len(words) > 1 && slices.ContainsFunc(words, mayJoin):
		return shellTest(ctx, env, op, file)
	case len(words) > 1:
		return 2 // test does not understand more words
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

// mayJoin says whether a word may make a test out of the words around it.
func mayJoin(word string) bool {
	return strings.HasPrefix(word, "-") || slices.Contains([]string{"=", "==", "!=", "<", ">", "!", "(", ")"}, word)
}

// shellTest leaves to bash what [checks.ExpandWords] does not understand.
func shellTest(ctx context.Context, env *checks.Env, op byte, file string) int {
	cmd := env.Shell(`set -f; eval test "$0" "$1"`, "-"+string(op), file)
	for name, value := range env.Vars {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	env.At("run test -%c %s", op, file)
	return env.Host.Run(ctx, cmd).Status
}
