package sweep

import "math"

// smallestFault returns the smallest loss of speed, as a share of the median, that a sweep with
// default options finds in a node with a probability of 99.999 %, even if only one direction is slow.
// sigma is the noise of a repeat, as a share; repeats is how many a test has.
func smallestFault(sigma float64, repeats int) float64 {
	s := max(sigma/math.Sqrt(float64(max(repeats, 1))), limitOf("sigma_floor"))
	const first = 2.73   // one of the two first tests sees it: 0.0032 squared is 1e-5
	const confirm = 4.27 // the mean of the confirmations is below the cut with 1e-5
	mean := confirm / math.Sqrt(limitOf("looks"))
	return max((limitOf("suspect_z")+max(first, mean))*s, limitOf("slow_share")+mean*s)
}
