package durable_test

import (
	"fmt"
	"os"

	"github.com/metacni/metacni/internal/durable"
)

func ExampleDir_WriteFile() {
	path, err := os.MkdirTemp("", "durable")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(path)

	var calls []string
	d, err := durable.MakeDir(path, func(call, _ string) error {
		calls = append(calls, call)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	if err := d.WriteFile("state", []byte("planned")); err != nil {
		fmt.Println(err)
		return
	}
	data, _, err := d.ReadFile("state", 1<<10)
	fmt.Println(string(data), err)
	fmt.Println(calls)
	// Output:
	// planned <nil>
	// [open fstat create write fsync close renameat fsync openat fstat read]
}
