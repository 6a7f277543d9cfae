package slurm

import (
	"context"
	"fmt"
	"strings"
)

// commentPrefix begins each AdminComment of nhc-gpu. Only a comment with this prefix is
// replaced.
const commentPrefix = "nhc-gpu: "

// TellJob writes to the AdminComment of a job that this node has refused it, and why: otherwise the
// user of a requeued job sees only BeginTime. It needs a read and a write, and keeps a comment of
// another writer: no release can append (22.05 stores the sign +=, 24.11 and 26.05 reject
// it).
//
// A user can make other fields look like an AdminComment, so no part of the answer is
// written back.
func TellJob(ctx context.Context, c *Controller, job, text string) error {
	if digits(job) == "" {
		return nil
	}
	argv, err := c.Settings.jobArgv(job)
	if err != nil {
		return fmt.Errorf("read job %s: %w", job, err)
	}
	out, err := c.call(ctx, argv)
	if err != nil {
		return fmt.Errorf("read job %s: %w", job, err)
	}
	text = cut(printable(commentPrefix+text), MaxReason)
	_, comment, is := strings.Cut(string(out.Stdout), "AdminComment=")
	if is && (!strings.HasPrefix(comment, commentPrefix) || strings.Contains(comment, "AdminComment=") || strings.HasPrefix(comment, text)) {
		return nil
	}
	if argv, err = c.Settings.commentArgv(job, text); err == nil {
		_, err = c.call(ctx, argv)
	}
	if err != nil {
		return fmt.Errorf("comment job %s: %w", job, err)
	}
	return nil
}
