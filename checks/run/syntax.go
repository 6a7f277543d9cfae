package run

import (
	"context"
	"strings"
	"time"
)

// SyntaxError returns the first line of bash's report about the syntax of a script, without running
// it; "" if the syntax is correct, or bash did not answer within limit. It is for a person's
// request. A worker starts bash: the file may lie on a mount that hangs.
func SyntaxError(ctx context.Context, p *Pool, script string, limit time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := p.Exec(ctx, []string{"/bin/bash", "-n", "--", script}, []string{"LC_ALL=C"}, nil)
	if err != nil || out.TimedOut || out.Status == 0 {
		return ""
	}
	first, _, _ := strings.Cut(string(out.Stderr), "\n")
	out, err = p.Exec(ctx, []string{"/bin/bash", "-c", withExtglob, "bash", script}, []string{"LC_ALL=C"}, nil)
	if err == nil && !out.TimedOut && out.Status == 0 {
		return ""
	}
	return first
}

// withExtglob checks a file that uses extended patterns after "shopt -s extglob", which bash -n does not
// run.
const withExtglob = `[[ "$(<"$1")" == *'shopt -s'*extglob* ]] && exec /bin/bash -O extglob -n -- "$1"`
