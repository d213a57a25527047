// Turns an OpenAPI 2 document into gnostic's protobuf (`write`), or that into YAML (`read`).
package main

import (
	"io"
	"os"

	openapi "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	input, err := io.ReadAll(os.Stdin)
	must(err)
	var output []byte
	if os.Args[1] == "write" {
		document, err := openapi.ParseDocument(input)
		must(err)
		output, err = proto.Marshal(document)
		must(err)
	} else {
		document := &openapi.Document{}
		must(proto.Unmarshal(input, document))
		output, err = document.YAMLValue("")
		must(err)
	}
	_, err = os.Stdout.Write(output)
	must(err)
}
