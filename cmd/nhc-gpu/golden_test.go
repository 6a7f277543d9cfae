package main

import (
	"fmt"
	"maps"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/wrap"
)

// The commands of tests/script/golden.txtar print what sites rely on: no change of the code's
// layout may alter it. The arguments, defaults and messages of checks are in
// docs/reference/checks, and the codes of our own checks in checks/codes.toml.

// printHelps prints the help of the program and of each of its commands.
func printHelps(ts *testscript.TestScript, _ bool, _ []string) {
	asked := [][]string{{"nhc-gpu", "-h"}, {"nhc", "-h"}, {"nhc-genconf", "-h"}, {"nhc-wrapper", "-h"}}
	for _, m := range regexp.MustCompile(`(?m)^ ([a-z]+(?: explain)?) `).FindAllStringSubmatch(options.OwnHelp[strings.Index(options.OwnHelp, " COMMAND"):], -1) {
		if m[1] != "help" {
			asked = append(asked, append(append([]string{"nhc-gpu"}, strings.Fields(m[1])...), "--help"))
		}
	}
	for _, argv := range asked {
		text, err := exec.Command(argv[0], argv[1:]...).Output()
		ts.Check(err)
		_, err = fmt.Fprintf(ts.Stdout(), "===== %s\n%s", strings.Join(argv, " "), text)
		ts.Check(err)
	}
}

// printRegistry prints the exit statuses, and class, lane, options and codes of each check.
func printRegistry(ts *testscript.TestScript, _ bool, _ []string) {
	var all strings.Builder
	fmt.Fprintf(&all, "exit status: usage %d, unknown %d, wrapper's usage %d, wrapper's state %d\n", options.ExitUsage, exitUnknown, wrap.ExitUsage, wrap.ExitState)
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		fmt.Fprintf(&all, "%s: class %s, lane %s, deadline %v, active %v, waits %v, may act %v, may ask Slurm %v\n",
			name, info.Class(), info.Lane, info.Timeout, info.Active, info.Waits, info.Acts != nil, info.Slurm != nil)
		writeFields(&all, reflect.ValueOf(info.New()).Elem())
		for _, v := range slices.Sorted(maps.Keys(info.Vars)) {
			fmt.Fprintf(&all, "  variable %s=%s\n", v, info.Vars[v])
		}
		for _, code := range slices.Sorted(maps.Keys(info.Advice())) {
			fmt.Fprintf(&all, "  code %s\n", code)
		}
	}
	_, err := fmt.Fprint(ts.Stdout(), all.String())
	ts.Check(err)
}

// writeFields writes the fields of a check that arguments or a table of TOML fill.
func writeFields(w *strings.Builder, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			writeFields(w, v.Field(i))
		} else if f.Tag != "" {
			fmt.Fprintf(w, "  %s %s", f.Tag, strings.TrimPrefix(f.Type.String(), "checks."))
			if !v.Field(i).IsZero() {
				fmt.Fprintf(w, " = %v", v.Field(i))
			}
			w.WriteString("\n")
		}
	}
}
