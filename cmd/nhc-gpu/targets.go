package main

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// matcher judges the targets of nhc.conf. External matchers are shell commands.
func (r *oneRun) matcher() *match.Matcher {
	m := &match.Matcher{Warn: func(text string) {
		if r.set.Get("SILENT") == "0" {
			r.log.Write(text)
		}
	}}
	m.External = match.Externals(r.set.Array("NHC_MCHECK_DELIM"), r.set.Array("NHC_MCHECK_COMMAND"))
	m.Run = func(e match.External, host, expr string) bool {
		command := e.Line(host, expr)
		o := &observer{r}
		if err := o.needShell(r.budget.End); err != nil {
			r.endShell()
			r.warn(err)
			return false
		}
		status, err := r.shell.Test(command, r.budget.End)
		if err != nil {
			r.warn(fmt.Errorf("run external matcher %q: %w", command, err))
		}
		return err == nil && status == 0
	}
	return m
}
