package run

import (
	"context"
	"os/exec"
	"strings"
	"time"
)

// SyntaxError is the first line of what bash, which runs nothing of it, says of
// the grammar of a script; "" if that is right, or cannot be told in limit. It
// is for a person who asks: the file may lie on a mount that hangs.
func SyntaxError(ctx context.Context, script string, limit time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/bash", "-n", "--", script)
	cmd.Env = []string{"LC_ALL=C"}
	cmd.WaitDelay = time.Second
	var said strings.Builder
	cmd.Stderr = &said
	if cmd.Run() == nil {
		return ""
	}
	first, _, _ := strings.Cut(said.String(), "\n")
	return first
}
