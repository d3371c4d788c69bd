from subflot.cli import main

main()
