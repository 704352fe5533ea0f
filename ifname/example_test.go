package ifname_test

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/metacni/metacni/ifname"
)

// The container gets four interfaces. The second has no requested name: its
// generated name is not "net1", which the fourth asks for.
func Example() {
	names, err := ifname.Scheme{Primary: "eth0"}.Plan("", "", "storage0", "net1")
	fmt.Println(names, err)
	// Output: [eth0 net2 storage0 net1] <nil>
}

// A name that is in use is found before anything is attached.
func ExampleScheme_Plan_taken() {
	s := ifname.Scheme{Primary: "eth0", Taken: []string{"lo", "net1", "storage0"}}
	fmt.Println(s.Plan("", ""))
	_, err := s.Plan("", "storage0")
	fmt.Println(err)
	fmt.Println(errors.Is(err, ifname.ErrTaken))
	// Output:
	// [eth0 net2] <nil>
	// "storage0": interface name already taken: in use in the container
	// true
}

func ExampleValidate() {
	for _, name := range []string{"eth0", "net%d", "1234567890123456", "all"} {
		fmt.Println(ifname.Validate(name))
	}
	// Output:
	// <nil>
	// "net%d": not a valid interface name: contains '%'
	// "1234567890123456": not a valid interface name: 16 bytes, but the longest is 15
	// "all": not a valid interface name: reserved by the kernel
}

// A container that is gone has no names, and says so.
func ExampleTaken() {
	_, err := ifname.Taken("/var/run/netns/gone")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) {
		fmt.Println("nothing to look at")
	}
	// Output: nothing to look at
}
