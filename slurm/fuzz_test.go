package slurm

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

// FuzzMemory reads arbitrary data as the memory of a node. Malformed data is an error; other data
// is unchanged after a save.
func FuzzMemory(f *testing.F) {
	f.Add([]byte(`{"version":1,"told":"drain","reason":"NHC: x"}`))
	if data, err := json.Marshal(Memory{Version: memoryFormat, Reason: "NHC: x"}); err == nil {
		f.Add(data)
	}
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := &store{data: data}
		c := &Controller{Node: "gpu01", Dir: dir, BootID: "boot-1"}
		m, err := c.load()
		if err != nil {
			return
		}
		_ = m.isForeign("NHC: y")
		if m.Version != memoryFormat {
			if data != nil {
				t.Errorf("version %d is taken", m.Version)
			}
			return
		}
		if err := c.save(m); err != nil {
			t.Fatal(err)
		}
		first := bytes.Clone(dir.data)
		if m, err = c.load(); err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		if err := c.save(m); err != nil || !bytes.Equal(first, dir.data) {
			t.Errorf("%s, then %s, %v", first, dir.data, err)
		}
	})
}

// FuzzRecord reads arbitrary data as the record of a job, and closes
// it.
func FuzzRecord(f *testing.F) {
	now := Moment{Time: time.Unix(1790000000, 0).UTC(), Boot: "boot-1", Uptime: 3600}
	if data, err := json.Marshal(NewRecord(Job{ID: "7", UID: 5001}, Scope{}, "gpu01", now)); err == nil {
		f.Add(data)
	}
	f.Add([]byte(`{"version":1,"job":"../7"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRecord(data)
		if err != nil {
			return
		}
		if digits(r.Job) == "" || r.Name() != RecordPrefix+r.Job {
			t.Errorf("job %q", r.Job)
		}
		other := NewRecord(Job{ID: "8", UID: 5002}, Scope{}, "gpu01", now)
		_ = r.EndedBefore(other, false, func(string) bool { return false })
		_ = other.EndedBefore(r, true, func(string) bool { return true })
		r.Close(now, nil, nil)
		closed, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseRecord(closed); err != nil {
			t.Errorf("%s: %v", closed, err)
		}
	})
}
