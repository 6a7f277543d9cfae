package worker

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/jobs"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/evidence"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// keepEvidence writes an archive about the node: into the memory directory, or into a new file of a
// person.
func keepEvidence(env *checks.Env, req *wire.Request) *wire.Response {
	h := env.Host
	if req.Path == "" && h.Past() != "" && !h.PastAnswers() { // or the run would wait for the limit
		return &wire.Response{Err: "the memory directory does not answer: " + h.Past()}
	}
	var files []evidence.File
	for _, f := range req.Files {
		files = append(files, evidence.File(f))
	}
	if len(req.Args) == 0 {
		files = append(files, evidence.Collect(h)...)
		if h.StateAnswers() {
			files = append(files, sampleFiles(jobs.RecordedSamples(env))...)
		}
	} else { // the job's end waits, and its user caused most failures: only its samples
		if !h.StateAnswers() {
			return &wire.Response{}
		}
		samples := sampleFiles(jobs.SamplesOf(env, files[0].Data))
		if samples == nil {
			return &wire.Response{}
		}
		files = append(files, samples...)
	}
	if req.Who != "" {
		files = evidence.Redact(files, req.Who, checks.KnownCode)
	}
	data, err := evidence.Archive(files, time.Now())
	if err != nil {
		return &wire.Response{Err: err.Error()}
	}
	if req.Path != "" {
		return createMode(req.Path, data, privateMode)
	}
	if err := evidence.Keep(h, req.Name, data); err != nil {
		return &wire.Response{Err: err.Error()}
	}
	return &wire.Response{Text: filepath.Join(h.Past(), evidence.Dir, req.Name)}
}

// sampleFiles returns the samples of GPUs, ports and jobs, if the monitor has some: the flight recorder.
func sampleFiles(e *flight.Extract, err error) []evidence.File {
	if err != nil || e == nil { // it is about another fault
		return nil
	}
	data, err := json.Marshal(e)
	if err != nil {
		return nil
	}
	return []evidence.File{{Name: "samples.json", Data: append(data, '\n')}}
}
