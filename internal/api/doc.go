// Package api tests what the module promises to its users: its exported
// identifiers (testdata, one file for each package) and its imports
// (imports_test.go). After an intended change of the API run
//
//	go test ./internal/api -update
//
// Its tests also check that .github, the Makefile, the scripts of .ci, the
// Dockerfiles and the documents name only things that exist
// (repository_test.go), and that copies of the examples build. The answers of
// examples/HOWTO.md are short, and their snippets compile.
package api
