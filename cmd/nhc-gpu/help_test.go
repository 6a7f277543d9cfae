package main

import (
	"regexp"
	"strings"
	"testing"
)

// The help lists every command, and every option of --check.
func TestHelpIsComplete(t *testing.T) {
	t.Parallel()
	for _, word := range []string{
		"--check", "plan", lintName, selftestName, platformsName, topoName, cablingName, explainName, "xid", "clear", jobName, "version", "help", "completion", genconfName, wrapName, baselineWord,
	} {
		if subcommand([]string{word}) == nil {
			t.Errorf("%s is no command", word)
		}
		if !regexp.MustCompile(`(?m)^ ` + word + `[ \[=]`).MatchString(ownHelp) {
			t.Errorf("the help lacks %s", word)
		}
	}
	for _, word := range []string{"--json", "--redact", "--act", "--no-shell"} {
		if rest := new(reportOptions).take([]string{word}); len(rest) > 0 {
			t.Errorf("--check has no option %s", word)
		}
		if !strings.Contains(ownHelp, "\n   "+word+" ") {
			t.Errorf("the help lacks %s", word)
		}
	}
	for _, letter := range optionSpec {
		if letter != ':' && !strings.Contains(helpText, "\n -"+string(letter)+" ") {
			t.Errorf("the help lacks -%c", letter)
		}
	}
}
