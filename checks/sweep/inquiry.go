package sweep

// inquiry finds out whether a node, a pair or the path between two leaves is faulty.
type inquiry struct {
	inquiryKey
	peer     int32   // of a node: the partner in the look that opened it
	symptoms symptom // of that look
	base     int32   // that look
	looks    []int32 // since then
	tried    []int32 // partners
	wait     int     // tests under way
	failed   int     // tests that never had a result
	dry      bool    // there is no further partner
	kin      bool    // the next partner need not be proven, but alike
	second   bool    // of a test without directions: the node comes second, as in the look that opened it
	turned   bool    // it was opened again for the other place
	again    bool    // it was opened again because partners were accused
	state    state
	found    finding
}

// inquiryKey identifies an inquiry.
type inquiryKey struct {
	about about
	test  int
	node  int32 // of leaves: the number of the first one
	other int32 // the second node of a pair, or the second leaf
	role  role
}

type about int8

const (
	aboutNode about = iota
	aboutPair
	aboutLeaves
	aboutGroup // two nodes that are accused, with each other
)

type role int8

const (
	both role = iota
	sends
	receives
)

func (r role) opposite() role {
	switch r {
	case sends:
		return receives
	case receives:
		return sends
	}
	return both
}

func (r role) String() string { return [...]string{"", "sends", "receives"}[r] }

type state int8

const (
	open state = iota
	accused
	cleared
	unproven  // it failed, but there are not enough proven partners
	explained // by an accused test of the same family
)

// reopen opens an inquiry again, with those of its looks that still count.
func (q *inquiry) reopen(looks []int32) {
	q.state, q.found, q.looks, q.tried, q.dry, q.kin = open, finding{}, looks, nil, false, false
}

// symptom is a set of ways in which a look is bad.
type symptom uint8

const (
	broken symptom = 1 << iota
	lossy
	slow
	flaky
	unable
)

// finding is what the looks of an inquiry say.
type finding struct {
	answer   answer
	symptom  symptom
	need     int // looks that are missing
	looks    int
	bad      int
	partners []int32
	value    float64 // mean
	expect   float64
	z        float64 // of the mean
	fault    Fault
	text     string
	doubt    bool
	beside   bool
}

// answer is the result of the looks of an inquiry.
type answer int8

const (
	more   answer = iota // further looks are needed
	yes                  // it is faulty
	no                   // it is not
	tooFew               // it is bad in all looks, but with too few partners to accuse it
)

// rule is how many looks decide an inquiry.
type rule struct {
	no, yes  int // looks that clear, and that accuse
	most     int
	partners int // different ones that are needed to accuse
}
