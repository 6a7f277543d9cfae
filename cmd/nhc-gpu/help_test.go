package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// The help lists every command and every option, and nothing else.
func TestHelpIsComplete(t *testing.T) {
	t.Parallel()
	root := rootCommand([]string{options.OwnName}, new(int))
	root.AddCommand(commands(new(int))...)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if !regexp.MustCompile(`(?m)^ ` + cmd.Name() + ` `).MatchString(options.OwnHelp) {
			t.Errorf("the help lacks %s", cmd.Name())
		}
	}
	root.Flags().VisitAll(func(f *pflag.Flag) {
		if !regexp.MustCompile(`[ \n]--` + f.Name + `[ \[]`).MatchString(options.OwnHelp) {
			t.Errorf("the help lacks --%s", f.Name)
		}
	})
	for _, m := range regexp.MustCompile(`(?m)^ +(--)?([a-z-]+)[ \[]`).FindAllStringSubmatch(options.OwnHelp[strings.Index(options.OwnHelp, "\n --check"):], -1) {
		cmd, _, err := root.Find(m[2:])
		if m[1] == "" && strings.HasPrefix(m[0], "  ") { // the text of the line before
			continue
		}
		if m[1] == "" && (err != nil || cmd == root) || m[1] != "" && root.Flags().Lookup(m[2]) == nil {
			t.Errorf("there is no %s%s", m[1], m[2])
		}
	}
	for line := range strings.Lines(options.HelpText + options.OwnHelp) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > console.HelpWidth {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
	for _, letter := range options.Spec {
		if letter != ':' && !strings.Contains(options.HelpText, "\n -"+string(letter)+" ") {
			t.Errorf("the help lacks -%c", letter)
		}
	}
}

// The help of a command begins with what it does, and has examples and exit statuses.
func TestHelpOfCommands(t *testing.T) {
	t.Parallel()
	judge := func(cmd *cobra.Command) {
		help := options.CommandHelp(cmd)
		for line := range strings.Lines(help) {
			isExample := strings.HasPrefix(line, "  nhc-gpu ") && strings.Contains(line, "'") // a command is not broken
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > console.HelpWidth && !isExample {
				t.Errorf("%s: a line of %d characters: %s", cmd.CommandPath(), len(line), line)
			}
		}
		if n := len(cmd.Short); n == 0 || n > 60 || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q: want a phrase of at most 60 characters", cmd.CommandPath(), cmd.Short)
		}
		if !cmd.DisableFlagParsing || cmd.RunE != nil { // else it prints a help of LBNL NHC's form
			if !cmd.HasExample() || !strings.Contains(cmd.Long, "xit status") {
				t.Errorf("%s: no example, or no exit status:\n%s", cmd.CommandPath(), help)
			}
		}
	}
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		judge(cmd)
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	root := rootCommand([]string{options.OwnName}, new(int))
	root.AddCommand(commands(new(int))...)
	for _, cmd := range root.Commands() {
		each(cmd)
	}
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		t.Fatal(err)
	}
	describeCompletion(completion)
	judge(completion) // those below it are cobra's
}
