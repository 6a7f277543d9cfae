package explain

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/checks"

	_ "embed"
)

// slurmReason is a reason that Slurm itself writes on a node.
type slurmReason struct {
	Reason, Means, Do, Source string
}

//go:embed slurm.toml
var slurmText string

// slurmReasons are the reasons of slurm.toml.
var slurmReasons = sync.OnceValue(func() []slurmReason {
	var file struct{ Reason []slurmReason }
	if _, err := toml.Decode(slurmText, &file); err != nil {
		panic("explain: slurm.toml: " + err.Error()) // TestSlurmReasons
	}
	return file.Reason
})

// explainSlurm explains a reason of Slurm, "" for any other text. Older versions write other capitals.
func explainSlurm(text string) string {
	i := slices.IndexFunc(slurmReasons(), func(r slurmReason) bool {
		return strings.HasPrefix(strings.ToLower(text), strings.ToLower(r.Reason))
	})
	if i < 0 {
		return ""
	}
	r := slurmReasons()[i]
	return checks.Explained("A reason of Slurm: "+r.Reason, "means", r.Means, "do", r.Do, "source", r.Source)
}

var (
	notResumed = checks.Lazily(`node \S+ is not resumed: (.*)$`)
	timedOut   = checks.Lazily(`Script timed out(?: while executing "(.*?)")?`)
	inLog      = checks.Lazily(`Health check (?:failed|unknown):  `)
	aloneMore  = checks.Lazily(`^\+[0-9]+$`)
	aloneJobs  = checks.Lazily(`^\[job ([0-9 ]+)\]$`)
)

// explainRun explains a text about a whole run, "" for any other text.
func explainRun(env *checks.Env, text string) string {
	switch {
	case aloneMore().MatchString(text):
		return explainMore(" " + text)
	case text == strings.TrimSpace(checks.DrillMark):
		return explainDrill(text)
	case aloneJobs().MatchString(text):
		job, _, _ := strings.Cut(aloneJobs().FindStringSubmatch(text)[1], " ")
		return checks.Explained(text, "means", "these jobs used the device, or ran on the node, when the fault occurred", "do", "nhc-gpu job "+job+" shows what happened while the job ran")
	case notResumed().MatchString(text):
		why := notResumed().FindStringSubmatch(text)[1]
		return checks.Explained("A health check found no failure, and the node stays out of service", "why", why, "do", resumeAfter(why))
	case timedOut().MatchString(text):
		line := timedOut().FindStringSubmatch(text)[1]
		if line != "" {
			line = fmt.Sprintf("  %-10s %s\n", "line", line)
		}
		return explainCode(env, "run.timeout") + line
	}
	return ""
}

// resumeAfter returns what to do so that a node returns, by the reason why it is not resumed.
func resumeAfter(why string) string {
	const byHand = "scontrol update NodeName=NODE State=RESUME"
	for _, row := range [][2]string{
		{"whose file this run does not read", "Run the file that is named: if it passes, it resumes the node. For nhc-active.conf: nhc-gpu -n nhc-active -a -t 900 (nhc-gpu-active.service)"},
		{"which this run skipped or did not finish", "Free the GPUs, and run the file that is named again: if it passes, it resumes the node"},
		{"which this run does not have", "Add the line to nhc.conf, or, if the fault is gone: " + byHand},
		{"in a drill that is not over", "nhc-gpu drill --end ends the drill"},
		{"which has passed in ", "Wait: a later run resumes the node, as the policy says (nhc-gpu plan --policy)"},
		{"which has not passed for ", "Wait: a later run resumes the node, as the policy says (nhc-gpu plan --policy)"},
		{"all checks pass, and ", "See nhc-gpu remedy --dry-run"},
	} {
		if strings.Contains(why, row[0]) {
			return row[1]
		}
	}
	return "See nhc-gpu status. If the fault is gone: " + byHand
}

// explainFold explains a message about the state of a whole GPU, which the first check that meets it
// reports; "" for any other message.
func explainFold(env *checks.Env, text string) string {
	for _, f := range entryOf("check_gpu_recovery").Findings {
		_, state, _ := strings.Cut(f.text(), ": ")
		if state, _, _ = strings.Cut(state, ","); len(strings.Fields(state)) > 2 && strings.Contains(text, state) {
			return explainCode(env, f.Code)
		}
	}
	return ""
}
