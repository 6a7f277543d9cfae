package main

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// matcher judges the targets of nhc.conf. External matchers are shell commands.
func (r *oneRun) matcher() *match.Matcher {
	m := &match.Matcher{Warn: func(text string) {
		if r.Set.Get("SILENT") == "0" {
			r.Log.Write(text)
		}
	}}
	m.External = match.Externals(r.Set.Array("NHC_MCHECK_DELIM"), r.Set.Array("NHC_MCHECK_COMMAND"))
	m.Run = func(e match.External, host, expr string) bool {
		command := e.Line(host, expr)
		o := &observer{r}
		if err := o.needShell(r.Budget.End); err != nil {
			r.endShell()
			r.Warn(err)
			return false
		}
		status, err := r.shell.Test(command, r.Budget.End)
		if err != nil {
			r.Warn(fmt.Errorf("run external matcher %q: %w", command, err))
		}
		return err == nil && status == 0
	}
	return m
}
