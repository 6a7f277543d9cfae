package slurm

import (
	"context"
	"slices"
	"strings"
	"testing"
)

func TestNoteRefusal(t *testing.T) {
	t.Parallel()
	const read, text = "scontrol show job 7", "gpu01 failed check_gpu_count (gpu3)"
	const write = "scontrol update JobId=7 AdminComment=nhc-gpu: " + text
	for _, tt := range []struct {
		name, job string
		shows     string
		want      []string
	}{
		{"none", "7", "JobId=7 JobName=x\n   Comment=mine\n", []string{read, write}},
		{"ours", "7", "JobId=7 JobName=x\n   AdminComment=nhc-gpu: gpu09 failed check_fs_mount\n   Comment=mine\n", []string{read, write}},
		{"the same", "7", "JobId=7 JobName=x\n   AdminComment=nhc-gpu: " + text + " \n", []string{read}},
		{"another's", "7", "JobId=7 JobName=x\n   AdminComment={\"project\": 4}\n", []string{read}},
		{"another's, and the job poses as ours", "7", "JobId=7 JobName=x\n   AdminComment=nhc-gpu: y\n   AdminComment=real\n", []string{read}},
		{"a task of an array with its own number", "7", "JobId=7 ArrayJobId=5 ArrayTaskId=2 JobName=x\n\n", []string{read, write}},
		{"the task with the array's number", "7", "JobId=7 ArrayJobId=7 ArrayTaskId=3 JobName=x\n   Comment=mine\n\nJobId=8 ArrayJobId=7 ArrayTaskId=1 JobName=x\n   AdminComment=real\n\n",
			[]string{read, strings.Replace(write, "JobId=7", "JobId=7_3", 1)}},
		{"the same, and another's", "7", "JobId=8 ArrayJobId=7 ArrayTaskId=1 JobName=x\n\nJobId=7 ArrayJobId=7 ArrayTaskId=3 JobName=x\n   AdminComment=real\n\n", []string{read}},
		{"no job", "", "", nil},
		{"no number", "7;x", "", nil},
	} {
		var calls []string
		c := controller(t, nil)
		c.Runner = runner(func(_ context.Context, argv, _ []string) (Output, error) {
			calls = append(calls, strings.Join(argv, " "))
			return Output{Stdout: []byte(tt.shows)}, nil
		})
		if err := NoteRefusal(t.Context(), c, tt.job, text); err != nil || !slices.Equal(calls, tt.want) {
			t.Errorf("%s: calls %q, %v, want %q", tt.name, calls, err, tt.want)
		}
	}
	c := controller(t, nil)
	c.Runner = runner(func(context.Context, []string, []string) (Output, error) {
		return failed(1, "Invalid job id specified")
	})
	if err := NoteRefusal(t.Context(), c, "7", text); err == nil || !strings.HasPrefix(err.Error(), "read job 7: run scontrol: exit status 1: ") {
		t.Errorf("error %v", err)
	}
}
