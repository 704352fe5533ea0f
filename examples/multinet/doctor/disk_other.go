//go:build !linux

package doctor

func (n *Node) lookAtDisk() {}
