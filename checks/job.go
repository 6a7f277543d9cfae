package checks

import "time"

// Job is the job of a prolog or an epilog.
type Job struct {
	ID    string    `json:"id"`              // digits
	SLUID string    `json:"sluid,omitempty"` // its other name, of Slurm 26.05; "" if unknown
	UID   int       `json:"uid"`             // find its user; -1 if unknown
	User  string    `json:"user,omitempty"`  // "" if unknown
	Node  string    `json:"node,omitempty"`  // Slurm's name of this node; "" if no other node shares the machine
	Began time.Time `json:"began,omitzero"`  // zero if unknown
	GPUs  []JobGPU  `json:"gpus,omitempty"`  // the GPUs of the job; empty if unknown

	Whole  bool  `json:"whole,omitempty"`  // the job has the whole node
	Part   bool  `json:"part,omitempty"`   // other jobs can be on the node; if neither Whole nor Part is set: unknown
	Shared bool  `json:"shared,omitempty"` // other jobs can have parts of its GPUs
	Beside []int `json:"beside,omitempty"` // uids of other jobs that started here and have no recorded end

	Het     string `json:"het,omitempty"`     // the ID of its heterogeneous job, "" if it is not a component
	Restart int    `json:"restart,omitempty"` // number of requeues
	Again   bool   `json:"again,omitempty"`   // it was requeued and started on this node again

	Ended bool          `json:"ended,omitempty"` // the run is the epilog
	End   bool          `json:"end,omitempty"`   // the site's policy: end the processes that it leaves behind
	Grace time.Duration `json:"grace,omitempty"` // how long they may take to end on their own
}

// Codes of check_job_leftovers: a process that no signal can end, and that a health check finds none.
const (
	JobStuck  = "job.left.stuck"
	NoneStuck = "job.left.none"
)

// JobGPU is a GPU of a job.
type JobGPU struct {
	Minor int    `json:"minor"` // the N of /dev/nvidiaN; -1 if unknown
	PCI   string `json:"pci,omitempty"`
	UUID  string `json:"uuid,omitempty"`
}
