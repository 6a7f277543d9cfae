package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The help lists every command and every option, and nothing else.
func TestHelpIsComplete(t *testing.T) {
	t.Parallel()
	root := rootCommand([]string{ownName}, new(int))
	root.AddCommand(commands(new(int))...)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if !regexp.MustCompile(`(?m)^ ` + cmd.Name() + ` `).MatchString(ownHelp) {
			t.Errorf("the help lacks %s", cmd.Name())
		}
	}
	root.Flags().VisitAll(func(f *pflag.Flag) {
		if !regexp.MustCompile(`[ \n]--` + f.Name + `[ \[]`).MatchString(ownHelp) {
			t.Errorf("the help lacks --%s", f.Name)
		}
	})
	for _, m := range regexp.MustCompile(`(?m)^ +(--)?([a-z-]+)[ \[]`).FindAllStringSubmatch(ownHelp[strings.Index(ownHelp, "\n --check"):], -1) {
		cmd, _, err := root.Find(m[2:])
		if m[1] == "" && strings.HasPrefix(m[0], "  ") { // the text goes on
			continue
		}
		if m[1] == "" && (err != nil || cmd == root) || m[1] != "" && root.Flags().Lookup(m[2]) == nil {
			t.Errorf("there is no %s%s", m[1], m[2])
		}
	}
	for _, letter := range optionSpec {
		if letter != ':' && !strings.Contains(helpText, "\n -"+string(letter)+" ") {
			t.Errorf("the help lacks -%c", letter)
		}
	}
}
