package checks

import "time"

// Job is the job that a prolog or an epilog runs for.
type Job struct {
	ID    string    `json:"id"`             // digits
	UID   int       `json:"uid"`            // of its user; -1 if it is not known
	User  string    `json:"user,omitempty"` // "" if it is not known
	Node  string    `json:"node,omitempty"` // what Slurm calls this node; "" if no other one shares the machine
	Began time.Time `json:"began,omitzero"` // zero if it is not known
	GPUs  []JobGPU  `json:"gpus,omitempty"` // those that it had; none if it is not known which

	Whole  bool  `json:"whole,omitempty"`  // it has the node for itself
	Part   bool  `json:"part,omitempty"`   // it has not: other jobs may be on the node; where neither is set nothing tells
	Shared bool  `json:"shared,omitempty"` // other jobs may have parts of its GPUs
	Beside []int `json:"beside,omitempty"` // uids of jobs that have begun here, too, and whose end nobody has seen

	Het     string `json:"het,omitempty"`     // the id of the heterogeneous job that it is a component of; "" if of none
	Restart int    `json:"restart,omitempty"` // number of requeues
	Again   bool   `json:"again,omitempty"`   // it started on this node again after a requeue

	Ended bool          `json:"ended,omitempty"` // this is its epilog
	End   bool          `json:"end,omitempty"`   // of the site's policy: what it leaves behind is ended
	Grace time.Duration `json:"grace,omitempty"` // and how long that may take to go by itself
}

// JobGPU is a GPU of a job.
type JobGPU struct {
	Minor int    `json:"minor"` // the N of /dev/nvidiaN; -1 if it is not known
	PCI   string `json:"pci,omitempty"`
	UUID  string `json:"uuid,omitempty"`
}
