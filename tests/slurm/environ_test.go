package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
)

// saveEnv is a prolog and an epilog that writes its environment to a file.
const saveEnv = `#!/bin/sh
export PATH=/usr/bin:/bin
file=/run/cluster/jobs/$SLURM_SCRIPT_CONTEXT.$SLURM_JOB_ID
env >$file.new
mv $file.new $file
`

// slurmd's variables for prolog and epilog about a job's GPUs are parsed correctly.
func TestPrologIsTold(t *testing.T) {
	t.Parallel()
	c := newGPUCluster(t, "GresTypes=gpu,shard,mps", "Prolog="+cluster.Dir+"/tell", "Epilog="+cluster.Dir+"/tell")
	shards, mps, none := c.Nodes[1], c.Nodes[2], c.Nodes[3]
	shards.conf, mps.conf, none.conf = "Gres=gpu:8,shard:32", "Gres=gpu:8,mps:800", ""
	c.Write("etc/gres.conf", []byte("NodeName=gpu[01-03] "+gresConf+
		"NodeName="+shards.Name+" Name=shard Count=32\nNodeName="+mps.Name+" Name=mps Count=800\n"), 0o644)
	c.Write("tell", []byte(saveEnv), 0o755)
	c.up()

	some := func(n int) slurm.Job { return slurm.Job{Share: slurm.SomeGPUs, Numbers: make([]int, n)} }
	shared := some(1)
	shared.Shared = true
	alone, all := slurm.Job{Share: slurm.AllGPUs, Alone: true}, some(gpusOfNode)
	all.Alone = true
	says := !strings.Contains(c.Version, " 22.05")
	if !says {
		alone, all.Alone = slurm.Job{}, false
	}
	gpu01 := "--nodelist=" + c.Nodes[0].Name
	tests := []struct {
		name  string
		words []string
		want  slurm.Job // Numbers: how many
	}{
		{"two GPUs", []string{gpu01, "--gres=gpu:2"}, some(2)},
		{"three of --gpus", []string{gpu01, "--gpus=3"}, some(3)},
		{"no GPU", []string{gpu01}, slurm.Job{}},
		{"a task of an array", []string{gpu01, "--gres=gpu:1", "--array=7"}, some(1)},
		{"exclusive", []string{gpu01, "--exclusive"}, all},
		{"exclusive, with one GPU", []string{gpu01, "--exclusive", "--gres=gpu:1"}, all},
		{"its user's alone", []string{gpu01, "--exclusive=user", "--gres=gpu:1"}, some(1)},
		{"a shard", []string{"--nodelist=" + shards.Name, "--gres=shard:1"}, some(1)}, // as if it had the GPU
		{"a part by MPS", []string{"--nodelist=" + mps.Name, "--gres=mps:50"}, shared},
		{"exclusive, Slurm knows of no GPU", []string{"--nodelist=" + none.Name, "--exclusive"}, alone},
		{"Slurm knows of no GPU", []string{"--nodelist=" + none.Name}, slurm.Job{}},
	}
	jobs := make([]*Job, len(tests))
	for i, tt := range tests {
		jobs[i] = c.SubmitScript("true", tt.words...)
	}
	for i, tt := range tests {
		want := tt.want
		want.ID, want.UID, want.User = jobs[i].ID, 65534, "nobody"
		want.Part = says && !want.Alone
		for _, context := range []string{"prolog_slurmd", "epilog_slurmd"} {
			got := slurm.JobFrom(jobs[i].environ(context))
			if got.Began.IsZero() == says || says && time.Since(got.Began).Abs() > time.Hour {
				t.Errorf("%s, %s: the job began at %v", tt.name, context, got.Began)
			}
			if sluid := strings.Contains(c.Version, " 26."); (got.SLUID != "") != sluid {
				t.Errorf("%s, %s: SLUID %q", tt.name, context, got.SLUID)
			}
			if context == "prolog_slurmd" && !got.OneNode {
				t.Errorf("%s: the job has one node, and the prolog does not say so", tt.name)
			}
			if node := jobs[i].environ(context)("SLURMD_NODENAME"); context == "prolog_slurmd" && got.First != node {
				t.Errorf("%s: the first node is %q, want %q", tt.name, got.First, node)
			}
			got.Began, got.SLUID, got.OneNode, got.First = time.Time{}, "", false, ""
			got.Numbers = append([]int(nil), make([]int, len(got.Numbers))...)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", tt.name, context, diff)
			}
		}
	}
}

// Without PrologFlags=Alloc a prolog runs before the first step on its node, and gets the nodes of that step.
func TestPrologOfStep(t *testing.T) {
	t.Parallel()
	c := newGPUCluster(t)
	c.conf = strings.Replace(c.conf, "PrologFlags=Alloc\n", "", 1)
	c.conf = strings.Replace(c.conf, "Prolog=/etc/slurm/prolog.d/*", "Prolog="+cluster.Dir+"/tell", 1)
	c.Write("tell", []byte(strings.ReplaceAll(saveEnv, "$SLURM_SCRIPT_CONTEXT", "$SLURMD_NODENAME")), 0o755)
	c.up()
	first, second := c.Nodes[0].Name, c.Nodes[1].Name
	job := c.SubmitScript("srun --nodes=1 --ntasks=1 --nodelist="+second+" true", "--nodes=2", "--nodelist="+first+","+second)
	env := job.environ(second)
	if nodes := env("SLURM_NODELIST"); nodes != second {
		t.Errorf("the prolog on %s gets the nodes %q, want those of the step", second, nodes)
	}
	if job := slurm.JobFrom(env); job.OneNode || job.First != "" {
		t.Errorf("a job of two nodes: %+v", job)
	}
}

// environ returns the environment of a job's prolog or epilog after it has run.
func (j *Job) environ(context string) func(string) string {
	j.c.t.Helper()
	var lines []string
	j.c.WaitFor(2*soon, fmt.Sprintf("%s of job %s", context, j.ID), func() (string, bool) {
		data, err := os.ReadFile(filepath.Join(j.c.Dir, "jobs", context+"."+j.ID))
		lines = strings.Split(string(data), "\n")
		return j.Is("JobState") + " " + j.Is("Reason"), err == nil
	})
	return func(name string) string {
		for _, line := range lines {
			if value, ok := strings.CutPrefix(line, name+"="); ok {
				return value
			}
		}
		return ""
	}
}
