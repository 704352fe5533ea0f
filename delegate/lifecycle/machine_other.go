//go:build !linux

package lifecycle

// kernel knows of no namespaces on this system.
type kernel struct{}

func (kernel) identify(_, path string) netns { return netns{Path: path} }
func (kernel) occupied(string, string) bool  { return false }
func (kernel) own(string) []netns            { return nil }
func (kernel) boot() string                  { return "" }
func (kernel) ask(netns) Life                { return Unknown }
func (kernel) scan(string, []netns) scanned {
	return scanned{unseen: "this system has no proc file system"}
}
func (kernel) removeInside(_, _, _ string)           {}
func (kernel) ended(int) bool                        { return false }
func (kernel) links(_, _ string) ([]hostLink, error) { return nil, nil }
