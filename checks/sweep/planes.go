package sweep

// planesOf returns the planes of the nodes that are alive: interfaces of the same name, or in the same
// subnet. The name of a plane is that of its interfaces, or its subnet if they have different names.
func planesOf(nodes []Node, alive []int32) []plane {
	var planes []plane
	byName, bySubnet := map[string]int{}, map[string]int{}
	parent := []int{}
	find := func(i int) int {
		for parent[i] != i {
			i = parent[i]
		}
		return i
	}
	key := func(seen map[string]int, name string) int {
		if k, ok := seen[name]; ok {
			return find(k)
		}
		seen[name] = len(parent)
		parent = append(parent, len(parent))
		return seen[name]
	}
	each := func(visit func(i int32, pl Plane, root int)) {
		for _, i := range alive {
			for _, pl := range nodes[i].Planes {
				root := key(byName, pl.Name)
				if pl.Address.IsValid() && pl.Address.Bits() < pl.Address.Addr().BitLen() {
					subnet := key(bySubnet, pl.Address.Masked().String())
					parent[subnet] = root
				}
				visit(i, pl, find(root))
			}
		}
	}
	each(func(int32, Plane, int) {})
	at := map[int]int{}
	each(func(i int32, pl Plane, root int) {
		k, ok := at[find(root)]
		if !ok {
			k = len(planes)
			at[find(root)] = k
			planes = append(planes, plane{name: pl.Name, has: make([]bool, len(nodes)), mtu: make([]int, len(nodes))})
		}
		p := &planes[k]
		if p.name != pl.Name && pl.Address.IsValid() {
			p.name = pl.Address.Masked().String()
		}
		if !p.has[i] {
			p.count++
		}
		p.has[i], p.mtu[i] = true, pl.MTU
		p.speeds = append(p.speeds, pl.Speed)
	})
	return planes
}

// plane is a plane of the cluster.
type plane struct {
	name   string
	has    []bool // by node
	mtu    []int  // by node
	count  int    // nodes that have it
	speeds []int
}

// commonest returns the most frequent number, the larger one of two; and how often it occurs.
func commonest(numbers []int) (most, times int) {
	count := map[int]int{}
	for _, n := range numbers {
		count[n]++
	}
	for n, c := range count {
		if c > times || c == times && n > most {
			most, times = n, c
		}
	}
	return most, times
}
