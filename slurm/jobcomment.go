package slurm

import (
	"context"
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// commentPrefix begins each AdminComment of nhc-gpu. Only a comment with this prefix is
// replaced.
const commentPrefix = "nhc-gpu: "

// NoteRefusal writes to the AdminComment of a job that this node has refused it, and why: otherwise the
// user of a requeued job sees only BeginTime. It needs a read and a write, and keeps a comment of
// another writer: no release can append (22.05 stores the sign +=, 24.11 and 26.05 reject
// it).
//
// A user can make other fields look like an AdminComment, so no part of the answer is
// written back.
func NoteRefusal(ctx context.Context, c *Controller, job, text string) error {
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
	shown := string(out.Stdout)
	for record := range strings.SplitSeq("\n"+shown, "\nJobId=") { // job may name an array: then all its tasks
		if strings.HasPrefix(record, job+" ") {
			shown = record
			break
		}
	}
	// The task that is split off last keeps the number of the array, and an update of that number
	// would reach all tasks.
	if m := arrayTask().FindStringSubmatch(shown); m != nil && m[1] == job {
		job += "_" + m[2]
	}
	_, comment, is := strings.Cut(shown, "AdminComment=")
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

var arrayTask = checks.Lazily(`^\d+ ArrayJobId=(\d+) ArrayTaskId=(\d+) `)
